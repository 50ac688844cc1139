// A session on GPUs made of threads; the program captures its stream in graphs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "horon/ops/cuda/cuda_event.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/session/running_job.h"
#include "horon/tests/ops/session/gpu_session_support.h"

namespace horon::gpu_session {

using Graph = std::shared_ptr<test::HostGraph>;

class GpuCapture : public GpuSession {
 protected:
  // Starts the session. When it returns, NCCL has connected the ranks.
  void start_and_warm_up(test::HostGpuLibraries::Options options = {},
                         const std::map<std::string, std::string>& knobs = {}) {
    start(options, knobs);
    (void)allreduce({}, "first", floats(10, 1))->get();
    program_ = std::make_unique<ops::CudaQueue>(ops::gpu()->cuda());
  }
  void TearDown() override {
    program_.reset();
    GpuSession::TearDown();
  }

  void begin() {
    device().set_capturing(true);  // none of Horon's threads may break the capture
    device().begin_capture(program_->stream());
  }
  Graph end() {
    Graph graph = device().end_capture(program_->stream());
    device().set_capturing(false);
    EXPECT_EQ(device().broken_captures(), 0);
    return graph;
  }
  void launch(const Graph& graph) { device().launch(graph, program_->stream()); }
  void run(std::function<void()> kernel) {
    device().enqueue(program_->stream(), [kernel = std::move(kernel)] {
      kernel();
      return true;
    });
  }

  // Submits as the bindings of LibTorch do.
  Handle submit(Submission given) {
    if (device().is_captured(program_->stream())) {
      auto spec = std::make_shared<EntrySpec>(*given.spec);
      spec->captured = true;
      given.spec = std::move(spec);
    }
    given.ready = std::make_unique<ops::CudaEvent>(ops::gpu()->cuda(), program_->stream());
    return ops::runtime().submit(std::move(given));
  }
  Handle reduce(const std::string& name, const Floats& data, ReduceOp op = ReduceOp::Sum,
                const ProcessSet& set = {}) {
    auto spec = spec_of(CollectiveKind::Allreduce, data->size(), DeviceKind::Cuda);
    spec->reduce_op = op;
    return submit(submission_of(set, name, std::move(spec), data));
  }
  std::string error_in_capture(const std::function<Handle()>& call) {
    begin();
    const std::string error = error_of(call);
    (void)end();
    return error;
  }
  // No handle waits for the work of a graph, so the test waits for the device.
  void drain() { program_->record()->wait(); }

  std::unique_ptr<ops::CudaQueue> program_;
};

}  // namespace horon::gpu_session
