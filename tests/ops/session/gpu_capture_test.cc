// Collectives in graphs: captured once, run at each launch.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/session/session.h"
#include "horon/tests/ops/session/gpu_capture_support.h"
#include "horon/tests/support/long_enough.h"

namespace horon::gpu_session {
namespace {

using testing::HasSubstr;

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
  EXPECT_THAT(*gradients[3], AllAre(-1.0F));

  const int waits_before = device().host_waits();
  for (int step = 1; step <= 6; ++step) {
    run([scale, step] { *scale = static_cast<float>(step); });
    launch(graph);
    if (step % 2 == 0) {  // other collectives, after it on every rank
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

// Graphs, whose launches follow each other, have other scratch than collectives outside of graphs.
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
    EXPECT_THAT(*scattered, AllAre(sum_of({}) / 2));
    EXPECT_THAT(*broadcast, AllAre(static_cast<float>(size())));
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
  for (const Floats& result : data) EXPECT_THAT(*result, AllAre(sum_of({})));
}

TEST_F(GpuCapture, RowsAreGatheredAndScatteredByGraphs) {
  start_and_warm_up();
  const auto ranks = static_cast<size_t>(size());
  const bool is_root = rank() == size() - 1;
  const Floats mine_to_root = floats(3, -1);
  const Floats at_root = floats(3 * ranks, -1);
  const Floats of_root = floats(is_root ? 2 * ranks : 0, -1);
  const Floats my_share = floats(2, -1);
  const auto capture = [&](CollectiveKind kind, const Floats& from, const Floats& to) {
    auto spec = spec_of(kind, from->size(), DeviceKind::Cuda);
    spec->root = size() - 1;
    Submission given = submission_of({}, std::string(to_string(kind)), spec, from);
    given.memory.front().output = nullptr;
    given.allocate_output = [to](size_t, int64_t, core::MemoryQueue&) {
      return reinterpret_cast<std::byte*>(to->data());
    };
    if (kind == CollectiveKind::Scatter && is_root) given.splits.assign(ranks, 2);
    wait_in(*program_, submit(std::move(given)));
  };
  begin();
  run([mine_to_root, value = mine()] {
    std::fill(mine_to_root->begin(), mine_to_root->end(), value);
  });
  capture(CollectiveKind::Gather, mine_to_root, at_root);
  run([of_root] { std::iota(of_root->begin(), of_root->end(), 0.0F); });
  capture(CollectiveKind::Scatter, of_root, my_share);
  const Graph graph = end();
  for (int round = 0; round < 2; ++round) {
    run([at_root, my_share] {
      std::fill(at_root->begin(), at_root->end(), -1.0F);
      std::fill(my_share->begin(), my_share->end(), -1.0F);
    });
    launch(graph);
    drain();
    for (size_t from = 0; from < ranks; ++from) {
      EXPECT_EQ((*at_root)[3 * from + 2], is_root ? static_cast<float>(from + 1) : -1.0F);
    }
    EXPECT_EQ(my_share->back(), static_cast<float>(2 * rank() + 1));
  }
}

// NCCL keeps its communicator as long as graphs have its kernels.
TEST_F(GpuCapture, AGraphThatOutlivesTheSessionHoldsItUpForAMomentOnly) {
  if (test_size() != 3) GTEST_SKIP() << "it takes long, and one number of ranks shows it: 3";
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

// Shows that the tests above notice a missing order.
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
