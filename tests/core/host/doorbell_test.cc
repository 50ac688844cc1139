#include "horon/core/host/doorbell.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/core/host/woken.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/shared_with_children.h"

namespace horon::core {
namespace {

using Clock = std::chrono::steady_clock;

const std::vector<WaitPolicy> kPolicies = {{std::chrono::nanoseconds(0), {0}},
                                           {std::chrono::nanoseconds(0), {20}},
                                           {std::chrono::microseconds(50), {0}},
                                           {std::chrono::microseconds(5), {3}}};

TEST(Doorbell, RemembersOneRing) {
  for (const WaitPolicy& policy : kPolicies) {
    Doorbell bell;
    bell.ring();
    bell.ring();
    EXPECT_TRUE(woken(bell, policy));
    EXPECT_FALSE(bell.wait(std::chrono::milliseconds(2), policy));
  }
}

TEST(Doorbell, TimesOutWithoutARing) {
  for (const WaitPolicy& policy : kPolicies) {
    Doorbell bell;
    for (const int64_t timeout_ns :
         {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{700}, int64_t{2'000'000}}) {
      EXPECT_FALSE(bell.wait(std::chrono::nanoseconds(timeout_ns), policy));
    }
  }
}

// A pause between two polls of MPI may be shorter than a look at the doorbell.
TEST(Doorbell, ALookEndsAtItsLimit) {
  std::atomic<bool> stop = false;
  const std::chrono::nanoseconds for_ever = std::chrono::hours(1);
  for (const WaitPolicy& policy : {WaitPolicy{for_ever, {0}}, WaitPolicy{{}, {20, for_ever}}}) {
    for (const int64_t limit_ns : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{2'000'000}}) {
      Doorbell bell;
      EXPECT_FALSE(bell.look(std::chrono::nanoseconds(limit_ns), policy, stop));
      bell.ring();
      EXPECT_TRUE(bell.look(std::chrono::nanoseconds(limit_ns), policy, stop));
    }
  }
  stop = true;
  for (const WaitPolicy& policy : {WaitPolicy{for_ever, {0}}, WaitPolicy{{}, {20, for_ever}}}) {
    EXPECT_FALSE(Doorbell().look(for_ever, policy, stop));
  }
}

TEST(Doorbell, CallsTheDeputyWhenItIsOnCall) {
  Doorbell bell;
  uint32_t calls = bell.calls();
  bell.ring();
  EXPECT_EQ(bell.calls(), calls) << "not on call yet";
  bell.set_deputy_on_call(true);  // an earlier ring has not been taken
  EXPECT_EQ(bell.calls(), ++calls);
  EXPECT_TRUE(bell.take());
  bell.set_deputy_on_call(true);
  bell.ring();
  EXPECT_EQ(bell.calls(), ++calls);
  bell.set_deputy_on_call(false);
  EXPECT_EQ(bell.calls(), calls) << "not on call any more";
}

// The call comes after the deputy has read how many there were, and before it sleeps.
TEST(Doorbell, ADeputyMissesNoCall) {
  Doorbell bell;
  const uint32_t seen = bell.calls();
  bell.call_deputy();
  bell.stand_by(seen, std::chrono::hours(1));
}

TEST(Doorbell, TakesTheLongestTimeout) {
  Doorbell bell;
  std::jthread ringer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    bell.ring();
  });
  EXPECT_TRUE(bell.wait(std::chrono::nanoseconds::max(), kPolicies.front()));
}

constexpr int kWaits = 100;

Clock::duration time_of_waits(Doorbell& bell, const WaitPolicy& policy) {
  const auto begin = Clock::now();
  for (int i = 0; i < kWaits; ++i) {
    EXPECT_FALSE(bell.wait(std::chrono::microseconds(1), policy));
  }
  return Clock::now() - begin;
}

Clock::duration time_of_yields(int count) {
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) std::this_thread::yield();
  return Clock::now() - begin;
}

// Beside a thread that computes, each yield costs a time slice of that thread, of milliseconds.
TEST(Doorbell, DoesNotYieldOnBesideThreadsThatCompute) {
  std::atomic<bool> stop{false};
  std::vector<std::jthread> computing;
  for (unsigned core = 0; core < std::thread::hardware_concurrency(); ++core) {
    computing.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  Doorbell bell;
  // The minimum over several turns, since other programs make them longer.
  auto sleeping = Clock::duration::max();
  auto waiting = Clock::duration::max();
  auto one_yield_each = Clock::duration::max();  // what the waits would take with one yield each
  const auto few_yields = [&] { return waiting < one_yield_each / 2; };
  for (int turn = 0; turn < 5 || (turn < 50 && !few_yields()); ++turn) {
    sleeping = std::min(sleeping, time_of_waits(bell, {std::chrono::nanoseconds(0), {0}}));
    waiting = std::min(waiting, time_of_waits(bell, {std::chrono::nanoseconds(0), {20}}));
    one_yield_each = std::min(one_yield_each, time_of_yields(kWaits / 10) * 10);
  }
  stop = true;
  if (one_yield_each < 4 * sleeping) GTEST_SKIP() << "a yield costs little more than a sleep here";
  EXPECT_TRUE(few_yields());
}

// Each round needs a wake-up of its own.
TEST(Doorbell, LosesNoRingBetweenTwoThreads) {
  for (const WaitPolicy& policy : kPolicies) {
    Doorbell ping;
    Doorbell pong;
    int value =
        0;  // guarded by the doorbells alone: a race detector sees whether they order memory
    constexpr int kRounds = 3000;
    std::jthread other([&] {
      for (int i = 0; i < kRounds; ++i) {
        ASSERT_TRUE(woken(ping, policy));
        ++value;
        pong.ring();
      }
    });
    for (int i = 0; i < kRounds; ++i) {
      ++value;
      ping.ring();
      ASSERT_TRUE(woken(pong, policy));
      ASSERT_EQ(value, 2 * i + 2);
    }
  }
}

TEST(Doorbell, LosesNoRingOfMany) {
  Doorbell bell;
  std::atomic<int> left{4 * 5000};
  std::vector<std::jthread> ringers;
  for (int ringer = 0; ringer < 4; ++ringer) {
    ringers.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        left.fetch_sub(1, std::memory_order_relaxed);
        bell.ring();
      }
    });
  }
  // After the last ring the waiter must see all that came before it.
  while (left.load(std::memory_order_relaxed) > 0) ASSERT_TRUE(woken(bell, kPolicies.front()));
}

TEST(Doorbell, WakesAnotherProcess) {
  const SharedWithChildren<std::array<Doorbell, 2>> bells;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool well = true;
    for (int i = 0; i < 500; ++i) {
      well = woken(bells->at(0), kPolicies.front()) && well;
      bells->at(1).ring();
    }
    _exit(well ? 0 : 1);
  }
  for (int i = 0; i < 500; ++i) {
    bells->at(0).ring();
    ASSERT_TRUE(woken(bells->at(1), kPolicies.front()));
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace horon::core
