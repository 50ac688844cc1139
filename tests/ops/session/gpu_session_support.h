// A session on GPUs made of threads, and tensors to submit to it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/all_are.h"
#include "horon/tests/support/host_gpu/host_gpu_libraries.h"
#include "horon/tests/support/mpi_main.h"

namespace horon::gpu_session {

using core::EntrySpec;
using core::HandleState;
using core::Submission;
using Handle = std::shared_ptr<HandleState>;
using Floats = std::shared_ptr<std::vector<float>>;

inline Floats floats(size_t count, float value) {
  return std::make_shared<std::vector<float>>(count, value);
}

inline std::shared_ptr<EntrySpec> spec_of(CollectiveKind kind, size_t rows, DeviceKind device) {
  auto spec = std::make_shared<EntrySpec>();
  spec->kind = kind;
  spec->device = device;
  spec->parts = {{"x", {static_cast<int64_t>(rows)}}};
  return spec;
}

inline Submission submission_of(const ProcessSet& set, const std::string& name,
                                std::shared_ptr<EntrySpec> spec, const Floats& data) {
  Submission out;
  out.set = set.id();
  out.name = name;
  out.spec = std::move(spec);
  if (out.spec->device == DeviceKind::Cuda) out.device_index = ops::gpu()->device();
  auto* const bytes = reinterpret_cast<std::byte*>(data->data());
  out.memory = {{bytes, bytes, static_cast<int64_t>(data->size())}};
  out.keep_alive = data;
  return out;
}

inline Handle allreduce(const ProcessSet& set, const std::string& name, const Floats& data,
                        DeviceKind device = DeviceKind::Cuda, ReduceOp op = ReduceOp::Sum) {
  auto spec = spec_of(CollectiveKind::Allreduce, data->size(), device);
  spec->reduce_op = op;
  return ops::runtime().submit(submission_of(set, name, std::move(spec), data));
}

// Work that is enqueued next reads the result.
inline void wait_in(ops::CudaQueue& queue, const Handle& handle) {
  core::Event* const done = handle->get_enqueued().done.get();
  if (done == nullptr) return;
  ASSERT_TRUE(queue.wait_for(*done));
}

inline std::string error_of(const std::function<Handle()>& call) {
  try {
    (void)call()->get();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline float sum_of(const ProcessSet& set) {
  float sum = 0;
  for (const int member : set.ranks()) sum += static_cast<float>(member + 1);
  return sum;
}

// As testing::Each(value), in a small part of its time.
MATCHER_P(AllAre, value, "") {
  if (all_are(arg, value)) return true;
  const auto wrong = std::find_if(arg.begin(), arg.end(), [this](auto x) { return x != value; });
  if (wrong == arg.end()) return true;  // -0 and 0
  *result_listener << "element " << wrong - arg.begin() << " of " << arg.size() << " is " << *wrong
                   << ", not " << value;
  return false;
}

// std::vector<std::byte> compares byte by byte.
inline bool are_same(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

class GpuSession : public testing::Test {
 protected:
  void start(test::HostGpuLibraries::Options options = {},
             const std::map<std::string, std::string>& knobs = {}) {
    options.cuda.delay_us_max = 30;
    options.cuda.seed = static_cast<uint32_t>(test_rank()) + 1;
    options.nccl.busy_polls = 1;
    libraries_ = test::HostGpuLibraries::install(options);
    InitOptions of_session;
    of_session.set = knobs;
    init_session(of_session);
  }
  void TearDown() override {
    shutdown();
    ops::install_gpu_libraries(nullptr);
  }
  test::HostCuda& device() { return *libraries_->opened_device(); }
  void write_late(ops::CudaQueue& program, std::chrono::microseconds late) {
    device().enqueue(program.stream(), [late] {
      std::this_thread::sleep_for(late);
      return true;
    });
  }
  float mine() const { return static_cast<float>(rank() + 1); }

  std::shared_ptr<test::HostGpuLibraries> libraries_;
};

}  // namespace horon::gpu_session
