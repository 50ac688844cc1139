// What can't be captured in a graph, and when.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/session/barrier.h"
#include "horon/ops/session/session.h"
#include "horon/tests/ops/session/gpu_capture_support.h"

namespace horon::gpu_session {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(GpuCapture, IsRefusedOnceARankHasJoined) {
  start_and_warm_up();
  if (size() == 1) GTEST_SKIP() << "one rank";
  if (rank() == 0) {
    (void)join();
  } else {
    EXPECT_THAT(error_in_capture([&] { return reduce("late", floats(10, 1)); }),
                AllOf(HasSubstr("late"), HasSubstr("rank 0 has joined")));
    (void)join();
  }
  const Floats data = floats(10, mine());
  (void)reduce("after", data)->get();  // the job goes on
  drain();
  EXPECT_THAT(*data, AllAre(sum_of({})));
}

// The collective is in the graphs of the others. Rank 0, whose capture has ended, would run it at
// once and wait for them.
TEST_F(GpuCapture, ACaptureThatEndsTooEarlyIsNamed) {
  if (test_size() != 3) GTEST_SKIP() << "it takes long, and one number of ranks shows it: 3";
  start_and_warm_up();
  const Floats data = floats(10, mine());
  begin();
  std::string error;
  if (rank() == 0) {
    const Handle handle = reduce("x", data);  // waits for the others, but not for this
    (void)end();
    (void)allreduce({}, "go", floats(1, 1), DeviceKind::Host)->get();
    error = error_of([&] { return handle; });
  } else {
    (void)allreduce({}, "go", floats(1, 1), DeviceKind::Host)->get();
    error = error_of([&] {
      Handle handle = reduce("x", data);
      barrier();  // ends with the job
      return handle;
    });
    device().set_capturing(false);
  }
  EXPECT_THAT(error, HasSubstr("capture"));
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
  EXPECT_THAT(*data, AllAre(sum_of({})));
}

TEST_F(GpuCapture, OneRankThatCapturesAloneIsNamed) {
  start_and_warm_up();
  if (size() == 1) GTEST_SKIP() << "one rank";
  const Floats data = floats(10, mine());
  const auto call = [&] { return reduce("loss", data); };
  const std::string error = rank() == 0 ? error_in_capture(call) : error_of(call);
  EXPECT_THAT(error, AllOf(HasSubstr("the ranks disagree about the capture"),
                           HasSubstr(": captured on rank 0"), HasSubstr("not captured on rank")));
  (void)reduce("loss", data)->get();
  drain();
  EXPECT_THAT(*data, AllAre(sum_of({})));
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
      HasSubstr("can't be captured in a CUDA graph"));
}

TEST_F(GpuCapture, IsRefusedWhereTheHostMakesAll) {
  start_and_warm_up({}, {{"HORON_GPU_COLLECTIVES", "host"}});
  const Floats data = floats(10, mine());
  EXPECT_THAT(error_in_capture([&] { return reduce("layer", data); }),
              AllOf(HasSubstr("captured in a CUDA graph"), HasSubstr("the host makes it")));
  (void)reduce("layer", data)->get();
}

}  // namespace
}  // namespace horon::gpu_session
