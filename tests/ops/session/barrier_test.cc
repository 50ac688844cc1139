// Barriers that go on while the program does other things.
#include "horon/ops/session/barrier.h"

#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/wait_check.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/mpi_main.h"

namespace horon {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using testing::HasSubstr;

TEST(Barrier, AsynchronousOnesEndWhenTheLastRankHasCome) {
  init_session();
  const int last = test_size() - 1;
  std::vector<BarrierHandle> handles;
  for (int i = 0; i < 20; ++i) {
    if (test_rank() != last) handles.push_back(barrier_async());
  }
  if (test_size() > 1 && test_rank() != last) {
    EXPECT_THAT(error_of([&] { handles.front().wait(20ms); }),
                HasSubstr("not all ranks have come to the barrier within 0.02 s"));
    EXPECT_FALSE(handles.front().poll());
  }
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < 20; ++i) {
    if (test_rank() == last) handles.push_back(barrier_async());
  }
  barrier();  // goes its own way
  for (const BarrierHandle& handle : handles) {
    handle.wait();
    EXPECT_TRUE(handle.poll());
    handle.wait(0ms);
  }
  shutdown();
}

// Rank 0 drops the handles, and is ahead by as many as may be under way.
TEST(Barrier, OneMoreThanMayBeUnderWayWaitsForTheOldest) {
  init_session();
  constexpr int kCalls = 1500;
  if (test_rank() != 0) std::this_thread::sleep_for(200ms);
  for (int i = 0; i < kCalls; ++i) (void)barrier_async();
  BarrierHandle last;
  for (int i = 0; i < kCalls; ++i) last = barrier_async();
  EXPECT_EQ(error_of([&] { last.wait(20s); }), "no error");
  shutdown();
}

// Two barriers under way at once would have one name.
TEST(Barrier, ThreadsOfOneRankTakeTurns) {
  init_session();
  const auto call_100 = [] {
    for (int i = 0; i < 100; ++i) EXPECT_EQ(error_of([] { barrier(); }), "no error");
  };
  std::thread other(call_100);
  call_100();
  other.join();
  barrier();
  shutdown();
}

// An exception that a signal handler raises in Python ends the wait, but not the barrier.
TEST(Barrier, AnInterruptedOneIsTheNextOne) {
  init_session();
  if (test_size() > 1 && test_rank() == 0) {
    core::set_wait_check([] { throw Error(ErrorCode::Timeout, "interrupted"); });
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(error_of([] { barrier(); }), HasSubstr("interrupted"));
    }
    core::set_wait_check(nullptr);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(error_of([] { barrier(); }), "no error");
  shutdown();
}

TEST(Barrier, EachProcessSetHasItsOwn) {
  init_session();
  const ProcessSet first = add_process_set({0});
  const BarrierHandle of_all = barrier_async();
  if (first.includes_me()) {
    const BarrierHandle alone = barrier_async(first);
    alone.wait();
  } else {
    EXPECT_THAT(error_of([&] { (void)barrier_async(first); }), HasSubstr("is not in process set"));
  }
  of_all.wait();
  shutdown();
}

// Otherwise the next barrier of this rank would have another name than those of the others.
TEST(Barrier, ARefusedOneIsNotCounted) {
  init_session();
  if (test_rank() == 0) {
    core::ban_collectives("this is what one rank does alone");
    EXPECT_THAT(error_of([] { (void)barrier_async(); }), HasSubstr("what one rank does alone"));
    core::ban_collectives(nullptr);
  }
  EXPECT_EQ(ops::call_counts().next("barrier", ProcessSet().id()), 0U);
  barrier_async().wait();
  shutdown();
}

TEST(Barrier, AnEmptyHandleSaysSo) {
  EXPECT_THAT(error_of([] { (void)BarrierHandle().poll(); }),
              HasSubstr("this BarrierHandle is empty"));
}

}  // namespace
}  // namespace horon
