// Failures while ranks leave: the last collectives still run, or a member is gone, and yet every
// rank hears the cause.
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/negotiation/wire_format.h"
#include "horon/tests/core/runtime/forwarding_transport.h"
#include "horon/tests/core/runtime/known_death.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using testing::AllOf;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// An allreduce of one element; on this rank its memory becomes ready when `ready` says so.
std::shared_ptr<HandleState> begin(Runtime& runtime, std::function<bool()> ready = nullptr) {
  const auto x = std::make_shared<Tensor>(tensor({1}));
  Submission mine = submission("x", *x);
  if (ready) mine.ready = std::make_unique<PolledEvent>(std::move(ready));
  mine.keep_alive = x;
  return runtime.submit(std::move(mine));
}

// The handle has the error that ended the job, word for word.
void expect_same_end(const Runtime& runtime, const HandleState& handle, ErrorCode code) {
  ASSERT_TRUE(handle.wait(kLongEnough));
  const auto fatal = runtime.fatal_error();
  ASSERT_NE(fatal, nullptr) << "it was there before the handle ended";
  EXPECT_EQ(fatal->code(), code);
  EXPECT_EQ(error_of(handle), fatal->what());
}

TEST(ShutdownFailures, ACollectiveThatFailsAfterAllHaveLeftIsTheErrorOfAll) {
  World world(3, {}, no_limits());
  std::atomic<Clock::rep> fails_at{0};
  std::barrier all_leave(3, [&]() noexcept {
    fails_at = (Clock::now() + 200ms).time_since_epoch().count();  // long after the log has ended
  });
  world.each([&](Runtime& runtime, int rank) {
    const auto fault = [&] {
      if (fails_at == 0 || Clock::now().time_since_epoch().count() < fails_at) return false;
      throw Error(ErrorCode::OperationFailed, "the device is gone");
    };
    const auto handle = rank == 1 ? begin(runtime, fault) : begin(runtime);
    all_leave.arrive_and_wait();
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    expect_same_end(runtime, *handle, ErrorCode::OperationFailed);
    EXPECT_THAT(error_of(*handle), AllOf(HasSubstr("rank 1"), HasSubstr("the device is gone")));
  });
}

// Until then the ranks that have nothing to do stay, since another rank may need them.
TEST(ShutdownFailures, NobodyEndsBeforeTheLastCollectiveHasEndedEverywhere) {
  World world(3);
  std::atomic<bool> go{false};
  std::atomic<int> ended{0};
  std::barrier all_leave(3);
  world.each([&](Runtime& runtime, int rank) {
    const auto late = [&] { return go.load(); };
    const auto handle = rank == 1 ? begin(runtime, late) : begin(runtime);
    all_leave.arrive_and_wait();
    std::jthread watch;
    if (rank == 1) {
      watch = std::jthread([&] {
        std::this_thread::sleep_for(200ms);
        EXPECT_EQ(ended, 0);
        go = true;
      });
    }
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    ++ended;
    EXPECT_EQ(error_of(*handle), "");
    EXPECT_EQ(runtime.fatal_error(), nullptr);
  });
}

TEST(ShutdownFailures, AShutdownThatEndsAtItsLimitTellsWhereCollectivesRun) {
  Config config = no_limits();
  config.stall_warn_s = 0.05;
  World world(2, {}, config);
  std::barrier has_begun(2);
  world.each([&](Runtime& runtime, int rank) {
    const auto handle = rank == 1 ? begin(runtime, [] { return false; }) : begin(runtime);
    has_begun.arrive_and_wait();  // the job ends at rank 0's limit
    if (rank == 0) wait_for_report(runtime, "rank 1 called shutdown()");
    const std::string text = runtime.shutdown(rank == 0 ? 5s : kLongEnough);
    if (rank == 0) {
      EXPECT_THAT(text, HasSubstr("collectives still run on ranks 0 and 1"));
    }
    expect_same_end(runtime, *handle, ErrorCode::Stall);
    EXPECT_THAT(error_of(*handle), HasSubstr("HORON_SHUTDOWN_TIMEOUT_S"));
  });
}

// One rank writes a last checkpoint or runs an evaluation. If the process of another rank ended,
// the launcher would end this one in the middle.
TEST(ShutdownFailures, WhoHasNothingLeftToDoWaitsForRanksThatAreBusyElsewhere) {
  for (const auto limit : {500ms, 0ms}) {
    World world(3, {}, no_limits());
    std::atomic<bool> saved{false};
    world.each([&](Runtime& runtime, int rank) {
      EXPECT_EQ(error_of(*begin(runtime)), "");
      if (rank == 1) {
        std::this_thread::sleep_for(1500ms);
        saved = true;
      }
      EXPECT_EQ(runtime.shutdown(limit), "");
      EXPECT_TRUE(saved);
      EXPECT_EQ(runtime.fatal_error(), nullptr);
    });
  }
}

// A transport that makes one turn of the loop stand still.
class StandsStill final : public ForwardingTransport {
 public:
  struct State {
    std::atomic<bool> next_turn{false};
    std::atomic<bool> now{false};
  };
  StandsStill(std::unique_ptr<Transport> below, State& state)
      : ForwardingTransport(std::move(below)), state_(state) {}

  std::optional<Message> receive() override {
    if (state_.next_turn.exchange(false)) {
      state_.now = true;
      std::this_thread::sleep_for(300ms);
    }
    return ForwardingTransport::receive();
  }

 private:
  State& state_;
};

// A turn that begins before the call of shutdown() does not know yet that this rank leaves.
TEST(ShutdownFailures, ATurnThatStandsStillIsNoReasonToEndTheJob) {
  StandsStill::State state;
  Hooks hooks;
  hooks.wrap_transport = [&](int rank, std::unique_ptr<Transport> below) {
    if (rank == 1) return below;
    return std::unique_ptr<Transport>(new StandsStill(std::move(below), state));
  };
  World world(2, {}, no_limits(), hooks);
  world.each([&](Runtime& runtime, int rank) {
    EXPECT_EQ(error_of(*begin(runtime)), "");
    if (rank == 1) {
      std::this_thread::sleep_for(1500ms);
    } else {
      state.next_turn = true;
      while (!state.now) std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(runtime.shutdown(100ms), "");
    EXPECT_EQ(runtime.fatal_error(), nullptr);
  });
}

// Rank 0 coordinates the collective that rank 1 waits for, and rank 2 comes late. Rank 1 has made a
// wrong call, too.
TEST(ShutdownFailures, WhatOthersWaitForIsNoReasonToEndTheJob) {
  World world(3, {}, no_limits());
  std::barrier has_begun(3);
  world.each([&](Runtime& runtime, int rank) {
    std::shared_ptr<HandleState> handle;
    if (rank == 1) {
      runtime.refuse("wrong", "it is wrong");
      handle = begin(runtime);
    }
    has_begun.arrive_and_wait();
    if (rank == 2) std::this_thread::sleep_for(1500ms);
    if (rank == 1) {
      EXPECT_THAT(error_of(*handle), HasSubstr("ranks 0 and 2 have shut down"));
    }
    EXPECT_EQ(runtime.shutdown(500ms), "");
    EXPECT_EQ(runtime.fatal_error(), nullptr);
  });
}

// Rank 1 sends a message before each turn, so this rank never sleeps. It does not send for ever, so
// that the test ends in any case.
class PeerThatTalks final : public ForwardingTransport {
 public:
  PeerThatTalks(std::unique_ptr<Transport> below, std::atomic<bool>& has_stopped)
      : ForwardingTransport(std::move(below)), has_stopped_(has_stopped) {}

  std::optional<Message> receive() override {
    if (Clock::now() > end_) has_stopped_ = true;
    has_spoken_ = !has_spoken_ && !has_stopped_;
    if (!has_spoken_) return ForwardingTransport::receive();
    Envelope envelope;
    envelope.items = {Pong{}};
    return Message{1, encode(envelope)};
  }

 private:
  std::atomic<bool>& has_stopped_;
  const Clock::time_point end_ = Clock::now() + kLongEnough;
  bool has_spoken_ = false;
};

TEST(ShutdownFailures, TheLimitHoldsWhereAPeerKeepsThisRankBusy) {
  std::atomic<bool> has_stopped{false};
  Hooks hooks;
  hooks.wrap_transport = [&](int rank, std::unique_ptr<Transport> below) {
    if (rank == 1) return below;
    return std::unique_ptr<Transport>(new PeerThatTalks(std::move(below), has_stopped));
  };
  World world(2, {}, no_limits(), hooks);
  world.each([&](Runtime& runtime, int rank) {
    if (rank == 1) {
      while (runtime.fatal_error() == nullptr) std::this_thread::sleep_for(1ms);
      EXPECT_EQ(runtime.fatal_error()->code(), ErrorCode::Stall);
      return;
    }
    const auto never = begin(runtime);  // rank 1 has it not
    EXPECT_THAT(runtime.shutdown(100ms), HasSubstr("not all that was submitted has ended"));
    EXPECT_FALSE(has_stopped) << "shutdown() went on for as long as the peer talked";
  });
}

TEST(ShutdownFailures, ARankThatDiesInTheLastCollectiveIsNamed) {
  Dead dead{.rank = 1};
  World world(3, {}, no_limits(), hooks_of(dead));
  std::barrier all_leave(3);
  world.each([&](Runtime& runtime, int rank) {
    const auto handle = rank == 1 ? begin(runtime, [] { return false; }) : begin(runtime);
    all_leave.arrive_and_wait();
    std::jthread killer;
    if (rank == 1) {
      killer = std::jthread([&] {
        std::this_thread::sleep_for(200ms);
        dead.known = true;
      });
    }
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    expect_same_end(runtime, *handle, ErrorCode::PeerDead);
    EXPECT_THAT(error_of(*handle), HasSubstr("rank 1 (pid 4711) has died"));
  });
}

// The dead rank has not called shutdown(). The limit is long, or it is over before the death is
// certain.
TEST(ShutdownFailures, ADeadRankIsNamedAndNotTheTimeLimit) {
  for (const auto limit : {100s, 1s}) {
    Dead dead{.rank = 1};
    World world(2, {}, no_limits(), hooks_of(dead));
    world.each([&](Runtime& runtime, int rank) {
      if (rank == 1) {
        dead.known = true;
        while (runtime.fatal_error() == nullptr) std::this_thread::sleep_for(1ms);
      } else {
        EXPECT_EQ(runtime.shutdown(limit), "");
      }
      ASSERT_NE(runtime.fatal_error(), nullptr);
      EXPECT_EQ(runtime.fatal_error()->code(), ErrorCode::PeerDead);
      EXPECT_THAT(runtime.fatal_error()->what(), HasSubstr("rank 1 (pid 4711) has died"));
    });
  }
}

TEST(ShutdownFailures, ASetWithADeadMemberIsNotWaitedForWhenItIsRemoved) {
  Dead dead{.rank = 1};
  World world(3, {}, no_limits(), hooks_of(dead));
  std::barrier all(3);
  world.each([&](Runtime& runtime, int rank) {
    runtime.add_set(1, {0, 1});
    EXPECT_EQ(error_of(*begin(runtime)), "");
    all.arrive_and_wait();  // nobody hears of the death before that
    if (rank == 0) {
      dead.known = true;
      try {
        runtime.remove_set(1);
        ADD_FAILURE() << "rank 1 is in it and does not remove it";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::PeerDead);
      }
    }
    while (runtime.fatal_error() == nullptr) std::this_thread::sleep_for(1ms);
    EXPECT_THAT(runtime.fatal_error()->what(), HasSubstr("rank 1 (pid 4711) has died"));
  });
}

// Rank 0 has ended properly with the set of all ranks; a set without rank 0 goes on.
TEST(ShutdownFailures, WhoHasEndedInAllItsSetsIsNotDead) {
  Dead dead{.rank = 0};
  World world(3, {}, no_limits(), hooks_of(dead));
  std::atomic<bool> go{false};
  std::barrier all_leave(3);
  world.each([&](Runtime& runtime, int rank) {
    runtime.add_set(1, {1, 2});
    ASSERT_EQ(error_of(*begin(runtime)), "");
    std::shared_ptr<HandleState> handle;
    if (rank > 0) {
      const auto x = std::make_shared<Tensor>(tensor({1}));
      Submission mine = submission("x", *x);
      mine.set = 1;
      mine.ready = std::make_unique<PolledEvent>([&] { return go.load(); });
      mine.keep_alive = x;
      handle = runtime.submit(std::move(mine));
    }
    all_leave.arrive_and_wait();
    std::jthread watch;
    if (rank == 1) {
      watch = std::jthread([&] {
        while (!dead.known) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(300ms);
        go = true;
      });
    }
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    if (rank == 0) dead.known = true;
    EXPECT_EQ(runtime.fatal_error(), nullptr);
    if (handle != nullptr) {
      EXPECT_EQ(error_of(*handle), "");
    }
  });
}

// Makes a call whenever a thread of the program sleeps in the loop.
class CallAtRest final : public ForwardingTransport {
 public:
  CallAtRest(std::unique_ptr<Transport> below, std::function<void()> call)
      : ForwardingTransport(std::move(below)), call_(std::move(call)) {}
  void wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) override {
    call_();
    ForwardingTransport::wait(timeout, policy);
  }

 private:
  const std::function<void()> call_;
};

// A signal handler that calls exit() makes such a call.
TEST(ShutdownFailures, AThreadThatLeavesWhileItSleepsInTheLoopTellsTheOthers) {
  // A runtime that a thread has left from within is never destroyed: the process ends.
  struct Job {
    std::atomic<Runtime*> leaving{nullptr};
    std::atomic<bool> has_left{false};
    std::barrier<> runs{2};
    std::unique_ptr<World> world;
  };
  static auto& kept = *new std::vector<Job*>;  // outlives the search for leaks
  Job* const job = kept.emplace_back(new Job);
  const std::string text = "exit() was called while this thread was in a collective";
  Hooks hooks;
  hooks.wrap_transport = [&](int rank,
                             std::unique_ptr<Transport> below) -> std::unique_ptr<Transport> {
    if (rank == 1) return below;
    return std::make_unique<CallAtRest>(std::move(below), [&] {
      Runtime* const leaving = job->leaving.exchange(nullptr);
      if (leaving == nullptr) return;
      EXPECT_EQ(leaving->shutdown(kLongEnough), text);
      job->has_left = true;
    });
  };
  job->world = std::make_unique<World>(2, FakeDelays{}, no_limits(), hooks);
  job->world->each([&](Runtime& runtime, int rank) {
    Tensor mine = tensor({1});
    EXPECT_EQ(error_of(*runtime.run(submission("x", mine))), "");  // so the loop is there
    job->runs.arrive_and_wait();
    if (rank == 0) job->leaving = &runtime;
    while (rank == 1 && !job->has_left) std::this_thread::sleep_for(1ms);
    try {
      EXPECT_EQ(error_of(*runtime.run(submission("x", mine))), "rank 0: " + text);
    } catch (const Error& error) {  // rank 1 had heard of the end before its call
      EXPECT_EQ(error.what(), "rank 0: " + text);
    }
    if (rank == 1) {
      EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    }
  });
}

}  // namespace
}  // namespace horon::core
