// A rank that must poll for the messages of a slow rank again and again.
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "horon/tests/core/runtime/forwarding_transport.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;

// A transport that must be polled, as if the peers sent by MPI.
class PolledWire final : public ForwardingTransport {
 public:
  PolledWire(std::unique_ptr<Transport> below, const WaitPolicy& policy,
             std::atomic<int>* looks = nullptr)
      : ForwardingTransport(std::move(below)), policy_(policy), looks_(looks) {}
  bool must_poll() const override { return true; }
  WaitPolicy wait_policy() const noexcept override { return policy_; }
  void wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) override {
    if (looks_ != nullptr && policy.look.yields > 0) ++*looks_;
    ForwardingTransport::wait(timeout, policy);
  }

 private:
  const WaitPolicy policy_;
  std::atomic<int>* const looks_;  // counts the waits that begin with a look
};

// Rank 0 has that transport.
Hooks polled_wire(const WaitPolicy& policy, std::atomic<int>* looks = nullptr) {
  Hooks hooks;
  hooks.wrap_transport = [=](int rank,
                             std::unique_ptr<Transport> below) -> std::unique_ptr<Transport> {
    if (rank == 1) return below;
    return std::make_unique<PolledWire>(std::move(below), policy, looks);
  };
  return hooks;
}

std::chrono::nanoseconds cpu_time(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

TEST(LongWait, BeginsWithALook) {
  std::atomic<int> looks{0};
  World world(2, FakeDelays{}, no_limits(), polled_wire({}, &looks));
  world.each([&](Runtime& runtime, int rank) {
    Tensor mine = tensor({1});
    for (int i = 0; i < 20; ++i) {
      if (rank == 1) std::this_thread::sleep_for(1ms);
      EXPECT_EQ(error_of(*runtime.run(submission("x", mine))), "");
    }
  });
  EXPECT_GT(looks, 0);
}

// The pauses are shorter than the time for which a thread may look or spin. If each pause began
// with that, the thread would never sleep, and would use its core for as long as the slow rank
// takes.
TEST(LongWait, SleepsInItsPauses) {
  const WaitPolicy looks{0ns, {20, 20ms}};
  const WaitPolicy spins{20ms, {0}};
  for (const WaitPolicy& policy : {looks, spins}) {
    for (const bool drives : {true, false}) {
      // The threads of fake devices take time as well.
      if (!drives && test::memory_of_worlds() != test::FakeMemory::Immediate) continue;
      World world(2, FakeDelays{}, no_limits(), polled_wire(policy));
      std::atomic<bool> waits{false};
      world.each([&](Runtime& runtime, int rank) {
        Tensor mine = tensor({1});
        // This makes sure that the loop runs: a thread that waits before that leaves the loop to
        // the background thread.
        EXPECT_EQ(error_of(*runtime.run(submission("first", mine))), "");
        if (rank == 1) {
          while (!waits) std::this_thread::sleep_for(1ms);
          std::this_thread::sleep_for(300ms);
          EXPECT_EQ(error_of(*runtime.run(submission("x", mine))), "");
          return;
        }
        // All other threads of this program sleep.
        const clockid_t clock = drives ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID;
        const auto begin = std::chrono::steady_clock::now();
        const std::chrono::nanoseconds before = cpu_time(clock);
        waits = true;
        const auto handle = runtime.submit(submission("x", mine));
        while (!drives && !handle->finished()) std::this_thread::sleep_for(1ms);
        EXPECT_EQ(error_of(*handle), "");
        const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
        EXPECT_LT(cpu_time(clock) - before, took / 2) << (drives ? "it drives" : "in background");
      });
    }
  }
}

// A collective that ends in the next moment is not noticed late because the thread polls for
// something else.
TEST(ShortPause, LastsNoLongerInTheBackground) {
  constexpr std::chrono::nanoseconds kSpin = 2s;
  bool in_time = false;
  World world(1, {.op_polls = 30}, no_limits(), polled_wire({kSpin, {0}}));
  world.each([&](Runtime& runtime, int) {
    for (int i = 0; i < 10 && !in_time; ++i) {  // others may use the cores
      Tensor mine = tensor({1});
      const auto begin = std::chrono::steady_clock::now();
      const auto handle = runtime.submit(submission("x", mine));
      while (!handle->finished()) std::this_thread::sleep_for(1ms);
      in_time = std::chrono::steady_clock::now() - begin < kSpin / 2;
      EXPECT_EQ(error_of(*handle), "");
    }
  });
  EXPECT_TRUE(in_time);
}

// A transport in which the process is suspended once.
class Suspended final : public ForwardingTransport {
 public:
  struct State {
    std::atomic<bool> begins{false};
    std::atomic<bool> is_over{false};
  };
  Suspended(std::unique_ptr<Transport> below, State& state)
      : ForwardingTransport(std::move(below)), state_(state) {}

  std::optional<Message> receive() override {
    if (state_.begins.exchange(false)) {
      std::this_thread::sleep_for(4s);
      state_.is_over = true;
    }
    return ForwardingTransport::receive();
  }

 private:
  State& state_;
};

// In shutdown() rank 0 waits for a collective, which rank 1 begins after the pause.
TEST(LongWait, ThePauseOfASuspendedProcessDoesNotCountInShutdown) {
  Suspended::State state;
  Hooks hooks;
  hooks.wrap_transport = [&](int rank, std::unique_ptr<Transport> below) {
    if (rank == 1) return below;
    return std::unique_ptr<Transport>(new Suspended(std::move(below), state));
  };
  World world(2, {}, no_limits(), hooks);
  world.each([&](Runtime& runtime, int rank) {
    if (rank == 1) {
      std::this_thread::sleep_for(300ms);  // rank 0 is in shutdown()
      state.begins = true;
      runtime.refuse("other", "it is wrong");  // wakes rank 0
      const auto limit = std::chrono::steady_clock::now() + 20s;
      while (!state.is_over && std::chrono::steady_clock::now() < limit) {
        std::this_thread::sleep_for(1ms);
      }
      std::this_thread::sleep_for(100ms);
    }
    Tensor mine = tensor({1});
    std::shared_ptr<HandleState> handle;
    try {
      handle = runtime.submit(submission("x", mine));
    } catch (const Error& error) {
      FAIL() << error.what();
    }
    EXPECT_EQ(runtime.shutdown(rank == 0 ? 3s : 20s), "");
    EXPECT_EQ(error_of(*handle), "");
  });
}

}  // namespace
}  // namespace horon::core
