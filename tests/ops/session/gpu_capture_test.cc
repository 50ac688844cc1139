// Collectives in graphs: captured once, made at each launch.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/cuda/cuda_event.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/session/barrier.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/ops/session/gpu_session_support.h"
#include "horon/tests/support/long_enough.h"

namespace horon::gpu_session {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using Graph = std::shared_ptr<test::HostGraph>;

class GpuCapture : public GpuSession {
 protected:
  // After it NCCL has connected the ranks.
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
    device().set_capturing(true);  // of Horon's threads none may break it
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

  // As LibTorch's bindings do it.
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
  // The host has nothing to say to it, so the test asks the device.
  void drain() { program_->record()->wait(); }

  std::unique_ptr<ops::CudaQueue> program_;
};

TEST_F(GpuCapture, AStepIsCapturedOnceAndMadeAtEachLaunch) {
  start_and_warm_up();
  constexpr std::array<size_t, 5> kCounts = {1, 300, 0, 70'000, 5};  // small ones are fused
  std::array<Floats, kCounts.size()> gradients;
  for (size_t i = 0; i < kCounts.size(); ++i) gradients[i] = floats(kCounts[i], -1);
  const auto scale = std::make_shared<std::atomic<float>>(0.0F);
  const auto wrong = std::make_shared<std::atomic<int>>(0);
  const auto seen = std::make_shared<std::atomic<int>>(0);

  begin();
  std::vector<Handle> handles;
  for (size_t i = 0; i < kCounts.size(); ++i) {
    run([gradient = gradients[i], scale, value = mine()] {
      std::fill(gradient->begin(), gradient->end(), *scale * value);
    });
    handles.push_back(reduce("gradient " + std::to_string(i), gradients[i], ReduceOp::Average));
  }
  for (const Handle& handle : handles) wait_in(*program_, handle);
  run([gradients, scale, wrong, seen, mean = sum_of({}) / static_cast<float>(size())] {
    ++*seen;
    for (const Floats& gradient : gradients) {
      *wrong += static_cast<int>(std::count_if(gradient->begin(), gradient->end(), [&](float x) {
        return std::abs(x - *scale * mean) > 1e-5F * *scale;
      }));
    }
  });
  Graph graph = end();
  EXPECT_EQ(*seen, 0) << "a capture makes nothing";
  EXPECT_THAT(*gradients[3], Each(-1.0F));

  const int waits_before = device().host_waits();
  for (int step = 1; step <= 6; ++step) {
    run([scale, step] { *scale = static_cast<float>(step); });
    launch(graph);
    if (step % 2 == 0) {  // others, behind it on every rank
      const Floats eager = floats(2000, mine());
      wait_in(*program_, reduce("eager", eager));
      run([eager, wrong, sum = sum_of({})] {
        if (eager->back() != sum) ++*wrong;
      });
    }
  }
  EXPECT_EQ(device().host_waits(), waits_before);
  drain();
  EXPECT_EQ(*seen, 6);
  EXPECT_EQ(*wrong, 0);
  EXPECT_EQ(gradients[0]->front(), 6 * sum_of({}) / static_cast<float>(size()));
}

// Their scratch belongs to the graphs: two of them, and what is done outside, do not share it.
TEST_F(GpuCapture, EachLaunchFindsItsScratchUntouched) {
  start_and_warm_up();
  const auto wrong = std::make_shared<std::atomic<int>>(0);
  std::vector<Graph> graphs;
  for (int which = 0; which < 2; ++which) {
    begin();
    std::vector<Handle> handles;
    std::vector<Floats> parts;
    for (int part = 0; part < 3; ++part) {
      parts.push_back(floats(1000, 0));
      run([data = parts.back(), value = mine()] { std::fill(data->begin(), data->end(), value); });
      handles.push_back(reduce("part " + std::to_string(part), parts.back()));
    }
    for (const Handle& handle : handles) wait_in(*program_, handle);
    run([parts, wrong, sum = sum_of({})] {
      for (const Floats& part : parts) {
        *wrong += static_cast<int>(
            std::count_if(part->begin(), part->end(), [&](float value) { return value != sum; }));
      }
    });
    graphs.push_back(end());
  }
  for (int round = 0; round < 4; ++round) {
    launch(graphs[static_cast<size_t>(round % 2)]);
    const Floats a = floats(1000, mine());
    const Floats b = floats(900, mine());
    const Handle one = reduce("eager a", a);
    const Handle two = reduce("eager b", b);
    wait_in(*program_, one);
    wait_in(*program_, two);
    run([a, b, wrong, sum = sum_of({})] {
      *wrong += a->back() != sum || b->front() != sum ? 1 : 0;
    });
  }
  drain();
  EXPECT_EQ(*wrong, 0);
}

TEST_F(GpuCapture, AllKindsCanBeCaptured) {
  start_and_warm_up();
  const auto ranks = static_cast<size_t>(size());
  const Floats input = floats(2 * ranks, 0);
  const auto capture = [&](CollectiveKind kind, const Floats& output, Submission given) {
    given.memory.front().output = nullptr;
    given.allocate_output = [output](size_t, int64_t, core::MemoryQueue&) {
      return reinterpret_cast<std::byte*>(output->data());
    };
    if (kind == CollectiveKind::Alltoall) given.splits.assign(ranks, 2);
    wait_in(*program_, submit(std::move(given)));
  };
  const auto given = [&](CollectiveKind kind) {
    return submission_of({}, std::string(to_string(kind)),
                         spec_of(kind, input->size(), DeviceKind::Cuda), input);
  };
  const Floats gathered = floats(2 * ranks * ranks, -1);
  const Floats scattered = floats(2, -1);
  const Floats exchanged = floats(2 * ranks, -1);
  const Floats broadcast = floats(3, -1);
  begin();
  run([input, value = mine()] { std::fill(input->begin(), input->end(), value); });
  capture(CollectiveKind::Allgather, gathered, given(CollectiveKind::Allgather));
  Submission reducing = given(CollectiveKind::Reducescatter);
  auto halved = std::make_shared<EntrySpec>(*reducing.spec);
  halved->prescale = 0.5;  // into scratch of the op
  reducing.spec = std::move(halved);
  capture(CollectiveKind::Reducescatter, scattered, std::move(reducing));
  capture(CollectiveKind::Alltoall, exchanged, given(CollectiveKind::Alltoall));
  run([broadcast, value = mine()] { std::fill(broadcast->begin(), broadcast->end(), value); });
  auto from_last = spec_of(CollectiveKind::Broadcast, 3, DeviceKind::Cuda);
  from_last->root = size() - 1;
  wait_in(*program_, submit(submission_of({}, "broadcast", from_last, broadcast)));
  const Graph graph = end();
  for (int round = 0; round < 3; ++round) {
    for (const Floats& output : {gathered, scattered, exchanged}) {
      run([output] { std::fill(output->begin(), output->end(), -1.0F); });
    }
    launch(graph);
    drain();
    for (size_t from = 0; from < ranks; ++from) {
      const auto value = static_cast<float>(from + 1);
      EXPECT_EQ((*gathered)[2 * ranks * from], value);
      EXPECT_EQ((*exchanged)[2 * from + 1], value);
    }
    EXPECT_THAT(*scattered, Each(sum_of({}) / 2));
    EXPECT_THAT(*broadcast, Each(static_cast<float>(size())));
  }
}

// Kernels that fill the device: in a graph they have one order too, though sets are submitted in
// any order.
TEST_F(GpuCapture, SetsHaveOneOrderInAGraph) {
  test::HostGpuLibraries::Options options;
  options.nccl.fills_device = true;
  start_and_warm_up(options);
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<ProcessSet> sets = {ProcessSet(), add_process_set(all)};
  std::vector<Floats> data;
  for (const ProcessSet& set : sets) {
    data.push_back(floats(4000, mine()));
    (void)reduce("warm up", data.back(), ReduceOp::Sum, set)->get();
  }
  if (rank() % 2 == 1) std::reverse(sets.begin(), sets.end());
  begin();
  std::vector<Handle> handles;
  for (size_t i = 0; i < sets.size(); ++i) {
    run([x = data[i], value = mine()] { std::fill(x->begin(), x->end(), value); });
    handles.push_back(reduce("captured", data[i], ReduceOp::Sum, sets[i]));
  }
  for (const Handle& handle : handles) wait_in(*program_, handle);
  const Graph graph = end();
  for (int round = 0; round < 5; ++round) launch(graph);
  drain();
  for (const Floats& result : data) EXPECT_THAT(*result, Each(sum_of({})));
}

TEST_F(GpuCapture, NothingIsCapturedBeforeTheRanksAreConnected) {
  start();
  (void)allreduce({}, "x", floats(4, 1), DeviceKind::Host)->get();
  program_ = std::make_unique<ops::CudaQueue>(ops::gpu()->cuda());
  const Floats data = floats(10, mine());
  EXPECT_THAT(error_in_capture([&] { return reduce("too early", data); }),
              AllOf(HasSubstr("too early"), HasSubstr("to warm up")));
  (void)reduce("too early", data)->get();  // the job goes on
  drain();
  EXPECT_THAT(*data, Each(sum_of({})));
}

TEST_F(GpuCapture, OneRankThatCapturesAloneIsNamed) {
  start_and_warm_up();
  if (size() == 1) GTEST_SKIP() << "one rank";
  const Floats data = floats(10, mine());
  const auto call = [&] { return reduce("loss", data); };
  const std::string error = rank() == 0 ? error_in_capture(call) : error_of(call);
  EXPECT_THAT(error, AllOf(HasSubstr("the ranks disagree about the capture"),
                           HasSubstr("graph on rank 0"), HasSubstr("none on rank")));
  (void)reduce("loss", data)->get();
  drain();
  EXPECT_THAT(*data, Each(sum_of({})));
}

TEST_F(GpuCapture, WhatTheHostMakesIsRefused) {
  start_and_warm_up();
  const Floats data = floats(10, mine());
  EXPECT_THAT(error_in_capture([&] { return reduce("layer", data, ReduceOp::Adasum); }),
              AllOf(HasSubstr("captured in a CUDA graph"), HasSubstr("the host makes it")));
  auto on_host = spec_of(CollectiveKind::Allreduce, 10, DeviceKind::Host);
  on_host->captured = true;
  EXPECT_THAT(
      error_of([&] { return ops::runtime().submit(submission_of({}, "host", on_host, data)); }),
      HasSubstr("can't be captured in a graph"));
}

TEST_F(GpuCapture, IsRefusedWhereTheHostMakesAll) {
  start_and_warm_up({}, {{"HORON_GPU_COLLECTIVES", "host"}});
  const Floats data = floats(10, mine());
  EXPECT_THAT(error_in_capture([&] { return reduce("layer", data); }),
              AllOf(HasSubstr("captured in a CUDA graph"), HasSubstr("the host makes it")));
  (void)reduce("layer", data)->get();
}

// NCCL keeps its communicator as long as graphs have its kernels.
TEST_F(GpuCapture, AGraphThatOutlivesTheSessionDoesNotHoldItUp) {
  start_and_warm_up();
  const Floats data = floats(100, mine());
  begin();
  wait_in(*program_, reduce("x", data));
  Graph graph = end();
  program_.reset();
  const auto began = std::chrono::steady_clock::now();
  shutdown();
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLongEnough);
  graph.reset();
}

// That the tests above see a missing order.
TEST_F(GpuCapture, AStreamThatLosesWaitsIsFoundOut) {
  test::HostGpuLibraries::Options options;
  options.cuda.loses_waits = true;
  start_and_warm_up(options);
  const Floats data = floats(3000, mine());
  begin();
  wait_in(*program_, reduce("x", data));
  EXPECT_THAT(error_of([&]() -> Handle {
                (void)end();
                return nullptr;
              }),
              HasSubstr("not joined"));
  device().set_capturing(false);
}

}  // namespace
}  // namespace horon::gpu_session
