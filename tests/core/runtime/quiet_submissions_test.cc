// Entries for which no thread is woken: the thread that submits them steps the loop next.
#include <barrier>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using Clock = std::chrono::steady_clock;

TEST(QuietSubmissions, TheirSubmitterDoesTheWork) {
  World world(2);
  world.each([](Runtime& runtime, int) {
    int here = 0;
    for (int i = 0; i < 100; ++i) {
      Tensor mine = tensor({1});
      const auto handle = runtime.submit_quietly(submission("x", mine));
      runtime.drive(*handle, Clock::now() + kLongEnough);
      here += handle->finished() ? 1 : 0;
      EXPECT_EQ(error_of(*handle), "");
      EXPECT_EQ(mine.data.front(), 2);
    }
    EXPECT_GT(here, 50) << "the background thread may not have begun for the first";
  });
}

// The thread that submits drives for a moment and never waits; the other rank comes later.
TEST(QuietSubmissions, GoOnWithoutTheirSubmitter) {
  World world(2);
  std::barrier<> driven(2);
  world.each([&](Runtime& runtime, int rank) {
    Tensor mine = tensor({1});
    if (rank == 1) {
      driven.arrive_and_wait();
      EXPECT_EQ(error_of(*runtime.run(submission("x", mine))), "");
      return;
    }
    const auto handle = runtime.submit_quietly(submission("x", mine));
    runtime.drive(*handle, Clock::now() + 1ms);
    EXPECT_FALSE(handle->finished());
    driven.arrive_and_wait();
    const auto end = Clock::now() + kLongEnough;
    while (!handle->finished() && Clock::now() < end) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(handle->finished());
  });
}

// Several are submitted before any thread steps the loop, and one of them fails at once.
TEST(QuietSubmissions, AnErrorOfOneKeepsNoOtherBack) {
  World world(2);
  std::barrier<> refused(2);
  world.each([&](Runtime& runtime, int rank) {
    Tensor first = tensor({1});
    Tensor again = tensor({1});
    Tensor other = tensor({1});
    if (rank == 1) refused.arrive_and_wait();  // until then "x" stays in flight on rank 0
    const auto begun = runtime.submit_quietly(submission("x", first));
    const auto twice = rank == 0 ? runtime.submit_quietly(submission("x", again)) : nullptr;
    const auto last = runtime.submit_quietly(submission("y", other));
    if (rank == 0) {
      runtime.drive(*twice, Clock::now() + kLongEnough);
      EXPECT_NE(error_of(*twice), "") << "a name that is in flight";
      refused.arrive_and_wait();
    }
    EXPECT_EQ(error_of(*begun), "");
    EXPECT_EQ(error_of(*last), "");
  });
}

TEST(QuietSubmissions, AreRefusedAfterShutdown) {
  World world(1);
  world.each([](Runtime& runtime, int) {
    Tensor mine = tensor({1});
    const auto done = runtime.submit_quietly(submission("x", mine));
    runtime.drive(*done, Clock::now() + kLongEnough);
    EXPECT_EQ(error_of(*done), "");
    runtime.shutdown(kLongEnough);
    Tensor late = tensor({1});
    EXPECT_THROW((void)runtime.submit_quietly(submission("y", late)), Error);
    runtime.drive(*done, Clock::now() + kLongEnough);  // returns at once
  });
}

}  // namespace
}  // namespace horon::core
