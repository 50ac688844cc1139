// Which thread steps the loop: a thread that waits, or otherwise the background thread.
#include <atomic>
#include <barrier>
#include <cfenv>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/wait_check.h"
#include "horon/tests/core/runtime/forwarding_transport.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using testing::AllOf;
using testing::HasSubstr;

// An allgather of one row that notes which thread steps it.
struct Traced {
  Tensor rows = tensor({1}, CollectiveKind::Allgather);
  std::vector<float> out;
  std::thread::id stepped_by;

  Submission as(const std::string& name) {
    Submission mine = submission(name, rows);
    mine.memory.front().output = nullptr;
    mine.allocate_output = [this](size_t, int64_t elements, MemoryQueue&) {
      stepped_by = std::this_thread::get_id();
      out.resize(static_cast<size_t>(elements));
      return reinterpret_cast<std::byte*>(out.data());
    };
    return mine;
  }
};

TEST(LoopSeat, ABlockingCallIsSteppedByItsThread) {
  World world(1);
  world.each([&](Runtime& runtime, int) {
    int here = 0;
    for (int i = 0; i < 200; ++i) {
      Traced traced;
      EXPECT_EQ(error_of(*runtime.run(traced.as("x"))), "");
      here += traced.stepped_by == std::this_thread::get_id() ? 1 : 0;
    }
    EXPECT_GT(here, 100) << "the background thread may be awake for a few, at its start above all";
  });
}

TEST(LoopSeat, WhatNobodyWaitsForIsSteppedInTheBackground) {
  World world(3);
  world.each([&](Runtime& runtime, int) {
    for (int i = 0; i < 100; ++i) {
      Traced traced;
      const auto handle = runtime.submit(traced.as("x"));
      while (!handle->finished()) std::this_thread::yield();
      EXPECT_EQ(error_of(*handle), "");
      EXPECT_NE(traced.stepped_by, std::this_thread::get_id());
      EXPECT_EQ(traced.out.size(), 3U);
    }
  });
}

TEST(LoopSeat, SubmitMayStepTheLoopItself) {
  World world(1, {}, no_limits(), {}, /*step_in_submit=*/true);
  world.each([&](Runtime& runtime, int) {
    int here = 0;
    for (int i = 0; i < 200; ++i) {
      Traced traced;
      const auto handle = runtime.submit(traced.as("x"));
      while (!handle->finished()) std::this_thread::yield();
      EXPECT_EQ(error_of(*handle), "");
      here += traced.stepped_by == std::this_thread::get_id() ? 1 : 0;
    }
    EXPECT_GT(here, 0);
  });
}

// A lost wake-up would show as a wait of seconds, since every name needs both ranks.
TEST(LoopSeat, ManyWaitingThreadsLoseNoWakeUp) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 300;
  for (const bool step_in_submit : {false, true}) {
    World world(2, {}, no_limits(), {}, step_in_submit);
    world.each([&](Runtime& runtime, int rank) {
      std::vector<std::jthread> threads;
      for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
          for (int i = 0; i < kRounds; ++i) {
            const std::string name = std::to_string(thread);
            Tensor mine = tensor({static_cast<float>(i), 1});
            // Some block, some wait later, some wait with limits that pass, some only ask.
            const int way = (i + thread + rank) % 4;
            const auto handle = way == 0 ? runtime.run(submission(name, mine))
                                         : runtime.submit(submission(name, mine));
            if (way == 2) {
              while (!handle->wait(20us)) {
              }
            } else if (way == 3) {
              while (!handle->finished()) std::this_thread::yield();
            }
            ASSERT_EQ(error_of(*handle), "");
            ASSERT_EQ(mine.data.front(), 2.0F * static_cast<float>(i));
          }
        });
      }
    });
  }
}

// The program may end a wait from outside: that of a driver, and that of a thread that sleeps.
TEST(LoopSeat, ACheckOfTheProgramEndsAWait) {
  static std::atomic<int> asked{0};
  const auto refuse = [] {
    ++asked;
    throw Error(ErrorCode::Timeout, "not now");
  };
  std::atomic<bool> seen{false};
  World world(2);
  world.each([&](Runtime& runtime, int rank) {
    Tensor mine = tensor({1});
    if (rank == 0) {
      const auto late = runtime.submit(submission("late", mine));
      set_wait_check(refuse);
      EXPECT_THROW(late->wait(std::nullopt), Error);  // drives
      {
        std::atomic<bool> stop{false};
        const std::jthread driver([&] {
          while (!stop) (void)late->wait(10ms);
        });
        EXPECT_THROW(late->wait(std::nullopt), Error);  // sleeps, most of the time
        stop = true;
      }
      EXPECT_FALSE(late->wait(1ms)) << "this wait leaves checks to others";
      const auto ends = [&](std::chrono::nanoseconds limit) { return late->wait(limit); };
      EXPECT_FALSE(wait_and_check(1ms, ends)) << "too short for a check";
      EXPECT_THROW((void)wait_and_check(std::chrono::nanoseconds::max(), ends), Error);
      set_wait_check(nullptr);
      seen = true;
      EXPECT_EQ(error_of(*late), "");  // it goes on
    }
    while (!seen) std::this_thread::yield();
    if (rank == 1) {
      EXPECT_EQ(error_of(*runtime.run(submission("late", mine))), "");
    }
  });
  EXPECT_EQ(asked, 3);
}

// A thread that waits for a late collective does not hold up the collectives of another thread.
TEST(LoopSeat, ADriverServesTheOthers) {
  World world(2);
  std::atomic<bool> stop{false};
  std::barrier<> begun(2);
  world.each([&](Runtime& runtime, int rank) {
    Tensor late = tensor({1});
    std::jthread driver([&] {
      if (rank == 1) {
        while (!stop) std::this_thread::sleep_for(1ms);
      }
      EXPECT_EQ(error_of(*runtime.run(submission("late", late))), "");
    });
    begun.arrive_and_wait();
    for (int i = 0; i < 200; ++i) {
      Tensor soon = tensor({1});
      EXPECT_EQ(error_of(*runtime.run(submission("soon", soon))), "");
    }
    if (rank == 1) stop = true;
  });
}

// The driver leaves a collective behind that must be polled, while the background thread is about
// to sleep: a lost call costs a quarter of a second.
TEST(LoopSeat, WhatADriverLeavesBehindGoesOn) {
  constexpr int kTimes = 60;
  int in_time = 0;
  // A busy machine delays some.
  for (int i = 0; i < 4 * kTimes && in_time < kTimes; ++i) {
    World world(1, {.op_polls = 5, .only_polls_at_sequence = 1});  // the second one takes longer
    world.each([&](Runtime& runtime, int) {
      Tensor behind = tensor({1}, CollectiveKind::Broadcast);  // so it is a batch of its own
      Tensor first = tensor({1});
      const auto done = runtime.submit(submission("first", first));
      const auto handle = runtime.submit(submission("behind", behind));
      EXPECT_EQ(error_of(*done), "");
      const auto begin = std::chrono::steady_clock::now();
      while (!handle->finished()) std::this_thread::yield();
      if (std::chrono::steady_clock::now() - begin < 200ms) ++in_time;
      EXPECT_EQ(error_of(*handle), "");
    });
  }
  EXPECT_EQ(in_time, kTimes);
}

// Found by computing: x86 has two sets of registers, each with a mode of its own.
bool rounds_to_nearest() {
  volatile float one = 1;
  volatile float tiny = 1e-30F;
  return one + tiny == 1;
}

// The program may compute in another mode; results must not depend on who steps the loop.
TEST(LoopSeat, TheLoopRunsInThePlainFloatMode) {
  World world(1);
  world.each([&](Runtime& runtime, int) {
    ASSERT_EQ(fesetround(FE_UPWARD), 0);
    for (int i = 0; i < 20; ++i) {
      Traced traced;
      bool plain = false;
      Submission mine = traced.as("x");
      mine.allocate_output = [&, allocate = mine.allocate_output](size_t part, int64_t elements,
                                                                  MemoryQueue& queue) {
        plain = rounds_to_nearest();
        return allocate(part, elements, queue);
      };
      EXPECT_EQ(error_of(*runtime.run(std::move(mine))), "");
      EXPECT_TRUE(plain);
      EXPECT_FALSE(rounds_to_nearest());
    }
    fesetround(FE_TONEAREST);
  });
}

// Collectives in flight are the parent's business.
TEST(LoopSeat, AForkedChildDoesNotDrive) {
  World world(2);
  std::barrier<> forked(2);
  world.each([&](Runtime& runtime, int rank) {
    Tensor mine = tensor({1});
    if (rank == 1) forked.arrive_and_wait();
    const auto handle = runtime.submit(submission("x", mine));
    if (rank == 0) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        bool told = !handle->wait(10ms) && !handle->wait(std::nullopt);
        try {
          (void)handle->get();
          told = false;
        } catch (const Error& error) {
          told = told && error.code() == ErrorCode::NotInitialized;
        }
        _exit(told ? 0 : 1);
      }
      int status = -1;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
      forked.arrive_and_wait();
    }
    EXPECT_EQ(error_of(*handle), "");
  });
}

TEST(LoopSeat, AWaitEndsAtItsLimit) {
  World world(2);
  std::barrier<> waited(2);
  world.each([&](Runtime& runtime, int rank) {
    Tensor mine = tensor({1});
    if (rank == 1) waited.arrive_and_wait();
    const auto handle = runtime.submit(submission("x", mine));
    if (rank == 0) {
      EXPECT_FALSE(handle->wait(0ns));
      EXPECT_FALSE(handle->wait(-5ns));
      EXPECT_FALSE(handle->wait(3ms));
      waited.arrive_and_wait();
    }
    EXPECT_EQ(error_of(*handle), "");
  });
}

// Over MPI, flushed() may fail.
class CantTellWhatIsSent final : public ForwardingTransport {
 public:
  CantTellWhatIsSent(std::unique_ptr<Transport> below, std::atomic<bool>& broken)
      : ForwardingTransport(std::move(below)), broken_(broken) {}

  bool must_poll() const override { return true; }
  bool flushed() override {
    if (broken_.exchange(false)) throw Error(ErrorCode::OperationFailed, "the wire is cut");
    return ForwardingTransport::flushed();
  }

 private:
  std::atomic<bool>& broken_;
};

// A driver that stops calls flushed() between two turns.
TEST(LoopSeat, WhatFailsWhileADriverHandsOverIsTheErrorOfAll) {
  std::atomic<bool> broken{false};
  Hooks hooks;
  hooks.wrap_transport = [&](int rank, std::unique_ptr<Transport> below) {
    if (rank != 0) return below;
    return std::unique_ptr<Transport>(new CantTellWhatIsSent(std::move(below), broken));
  };
  World world(2, {}, no_limits(), hooks);
  world.each([&](Runtime& runtime, int rank) {
    std::string error;
    for (int i = 0; error.empty(); ++i) {
      if (rank == 0 && i == 3) broken = true;
      Tensor mine = tensor({1});
      try {
        error = error_of(*runtime.run(submission("x", mine)));
      } catch (const Error& refusal) {
        error = refusal.what();
      }
    }
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0"), HasSubstr("the wire is cut")));
  });
}

// As when exit() in a signal handler ends the job: its thread may be anywhere in the loop, and may
// hold the locks that fail() would take.
TEST(LoopSeat, FailWithinTheLoopTouchesNothingOfIt) {
  World world(1);
  world.each([](Runtime& runtime, int) {
    Tensor rows = tensor({1}, CollectiveKind::Allgather);
    float gathered = 0;
    Submission mine = submission("rows", rows);
    mine.memory.front().output = nullptr;
    mine.allocate_output = [&](size_t, int64_t, MemoryQueue&) {
      runtime.fail(Error(ErrorCode::PeerDead, "exit() was called"));
      return reinterpret_cast<std::byte*>(&gathered);
    };
    EXPECT_EQ(error_of(*runtime.run(std::move(mine))), "");
    Tensor next = tensor({1});
    EXPECT_EQ(error_of(*runtime.run(submission("next", next))), "");
    EXPECT_EQ(runtime.fatal_error(), nullptr);
  });
}

TEST(LoopSeat, ShutdownEndsAWaitOfAnotherThread) {
  World world(2);
  world.each([&](Runtime& runtime, int rank) {
    Tensor mine = tensor({1});
    std::jthread waiting;
    if (rank == 0) {
      waiting = std::jthread([&] {
        try {
          EXPECT_NE(error_of(*runtime.run(submission("never on rank 1", mine))), "");
        } catch (const Error&) {  // its call came after shutdown()
        }
      });
    }
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
  });
}

}  // namespace
}  // namespace horon::core
