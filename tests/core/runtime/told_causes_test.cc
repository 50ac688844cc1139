// Which of several errors the ranks get: the cause that one rank has sent counts more than its
// consequences on other ranks.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/negotiation/wire_format.h"
#include "horon/tests/core/runtime/faulty_transport.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using testing::HasSubstr;

// An op that runs each collective by one call of `step`.
class StepByStep final : public CollectiveOp {
 public:
  explicit StepByStep(std::function<void()> step) : step_(std::move(step)) {}
  std::string_view name() const override { return "step_allreduce"; }
  std::string refusal(const BatchFacts&) const override { return ""; }
  std::unique_ptr<InFlight> start(Batch) override { return std::make_unique<Flight>(step_); }

 private:
  class Flight final : public InFlight {
   public:
    explicit Flight(const std::function<void()>& step) : step_(step) {}
    Progress step() override {
      step_();
      return Progress::Done;
    }

   private:
    const std::function<void()>& step_;
  };
  const std::function<void()> step_;
};

// Notes that an Abort has been sent, once the receiver can read it: to any rank, or to `listener`.
class NotesAborts final : public ForwardingTransport {
 public:
  NotesAborts(std::unique_ptr<Transport> below, std::atomic<bool>& told,
              std::optional<int> listener = {})
      : ForwardingTransport(std::move(below)), told_(told), listener_(listener) {}
  void send(int to, SharedBytes message) override {
    const bool aborts = to == listener_.value_or(to) && holds_abort(message);
    ForwardingTransport::send(to, std::move(message));
    if (aborts) told_ = true;
  }

 private:
  static bool holds_abort(std::span<const std::byte> message) {
    if (is_farewell(message)) return false;
    const std::vector<Item> items = decode(message).items;
    return std::any_of(items.begin(), items.end(),
                       [](const Item& item) { return std::holds_alternative<Abort>(item); });
  }
  std::atomic<bool>& told_;
  const std::optional<int> listener_;
};

// On rank 1 a collective fails because it has failed on rank 0: the error that rank 0 sends counts
// more.
TEST(ToldCauses, WhatAPeerSaysCountsMoreThanWhatFollowsFromIt) {
  std::atomic<bool> told{false};
  Hooks hooks;
  hooks.wrap_transport = [&](int rank, std::unique_ptr<Transport> below) {
    if (rank != 0) return below;
    return std::unique_ptr<Transport>(new NotesAborts(std::move(below), told));
  };
  hooks.change_execution = [&](int rank, const std::vector<int>&, Executor::Parts& execution) {
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(std::make_unique<StepByStep>([&, rank] {
      if (rank == 0) throw Error(ErrorCode::OperationFailed, "the first cause");
      // Rank 0 has sent its Abort, and this rank has not read it yet.
      while (!told) std::this_thread::sleep_for(1ms);
      throw Error(ErrorCode::OperationFailed, "what follows from it");
    }));
    execution.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  };
  World world(2, {}, no_limits(), hooks);
  world.each([&](Runtime& runtime, int) {
    EXPECT_THAT(error_of_submit(runtime, "x"), HasSubstr("the first cause"));
  });
}

// Rank 1's transport fails while rank 0 is in a collective of a set. Rank 1 sends the cause only in
// the set of all ranks.
TEST(ToldCauses, WhatAPeerSaysInAnotherSetCountsMoreThanWhatFollowsFromItInThisOne) {
  std::atomic<bool> under_way{false};
  std::atomic<bool> broken{false};
  std::atomic<bool> told{false};
  Hooks hooks;
  hooks.wrap_transport = [&](int rank, std::unique_ptr<Transport> below) {
    if (rank != 1) return below;
    auto faulty =
        std::make_unique<FaultyTransport>(std::move(below), [&](FaultyTransport::Call call, int) {
          if (broken && call == FaultyTransport::Call::Receive) {
            throw Error(ErrorCode::OperationFailed, "the wire is cut");
          }
        });
    return std::unique_ptr<Transport>(new NotesAborts(std::move(faulty), told));
  };
  hooks.change_execution = [&](int rank, const std::vector<int>&, Executor::Parts& execution) {
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(std::make_unique<StepByStep>([&, rank] {
      if (rank == 1) return;
      under_way = true;
      while (!told) std::this_thread::sleep_for(1ms);
      throw Error(ErrorCode::OperationFailed, "what follows from it");
    }));
    execution.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  };
  World world(2, {}, no_limits(), hooks);
  std::barrier<> all_have_the_set(2);
  world.each([&](Runtime& runtime, int rank) {
    runtime.add_set(1, {0, 1});
    all_have_the_set.arrive_and_wait();
    std::string error = error_of_submit(runtime, "x", 1);
    if (rank == 1) {
      while (!under_way) std::this_thread::sleep_for(1ms);
      broken = true;
      error = error_of_submit(runtime, "y", 1);
    }
    EXPECT_THAT(error, HasSubstr("the wire is cut"));
  });
}

// Several ranks may find it at once: all say the same.
TEST(ToldCauses, TheDeathThatACollectiveFindsIsAllThatIsTold) {
  Hooks hooks;
  hooks.change_execution = [](int, const std::vector<int>&, Executor::Parts& execution) {
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(std::make_unique<StepByStep>(
        [] { throw Error(ErrorCode::PeerDead, "rank 7 (pid 1) has died"); }));
    execution.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  };
  World world(2, {}, no_limits(), hooks);
  world.each([](Runtime& runtime, int) {
    const std::string error = error_of_submit(runtime, "x");
    EXPECT_THAT(error, HasSubstr("rank 7 (pid 1) has died"));
    EXPECT_THAT(error, testing::Not(HasSubstr("collective of")));
  });
}

// Sees that a peer has died before it reads the peer's last message.
class DeathBeforeNews final : public ForwardingTransport {
 public:
  struct State {
    std::atomic<bool> holds_news{false};
    std::atomic<bool> peer_died{false};
  };
  DeathBeforeNews(std::unique_ptr<Transport> below, State& state)
      : ForwardingTransport(std::move(below)), state_(state) {}

  std::optional<Message> receive() override {
    return state_.holds_news ? std::nullopt : ForwardingTransport::receive();
  }
  bool must_poll() const override { return true; }
  std::vector<DeadPeer> dead_peers() override {
    if (!state_.peer_died) return {};
    state_.holds_news = false;
    return {{0, "rank 0 (pid 1)"}};
  }

 private:
  State& state_;
};

// Rank 1 fails, rank 0 sends the cause and ends; rank 2 must not blame rank 0.
TEST(ToldCauses, ADeadPeersLastMessageCountsMoreThanItsDeath) {
  DeathBeforeNews::State state;
  std::atomic<bool> broken{false};
  Hooks hooks;
  std::atomic<bool> told{false};  // by rank 0
  hooks.wrap_transport = [&](int rank, std::unique_ptr<Transport> below) {
    if (rank == 0) return std::unique_ptr<Transport>(new NotesAborts(std::move(below), told, 2));
    const auto fault = [&](FaultyTransport::Call call, int) {
      if (broken && call == FaultyTransport::Call::Receive) {
        throw Error(ErrorCode::OperationFailed, "the wire is cut");
      }
    };
    return rank == 1 ? std::unique_ptr<Transport>(new FaultyTransport(std::move(below), fault))
                     : std::unique_ptr<Transport>(new DeathBeforeNews(std::move(below), state));
  };
  World world(3, {}, no_limits(), hooks);
  std::barrier<> all_is_well(3);
  world.each([&](Runtime& runtime, int rank) {
    EXPECT_EQ(error_of_submit(runtime, "before"), "");
    if (rank == 2) state.holds_news = true;
    all_is_well.arrive_and_wait();
    if (rank == 1) broken = true;
    EXPECT_THAT(error_of_submit(runtime, "after"), HasSubstr("the wire is cut"));
    if (rank != 0) return;
    while (!told) std::this_thread::sleep_for(1ms);
    state.peer_died = true;
  });
}

// Receives from no other rank before it has received from rank 1.
class HearsRank1First final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  std::optional<Message> receive() override {
    while (std::optional<Message> message = ForwardingTransport::receive()) {
      const bool is_first = !heard_ && message->from == 1;
      heard_ = heard_ || is_first;
      if (is_first) return message;
      later_.push_back(std::move(*message));
    }
    if (!heard_ || later_.empty()) return std::nullopt;
    Message next = std::move(later_.front());
    later_.pop_front();
    return next;
  }

 private:
  bool heard_ = false;
  std::deque<Message> later_;
};

// Rank 2 can't make a set that rank 1 has made. The Abort that rank 1 sends to the members of the
// set reaches rank 3 before rank 3 makes the set, and before it hears from rank 2.
TEST(ToldCauses, AnAbortCountsThoughItsSetIsNotKnownHere) {
  std::atomic<bool> made_on_rank_1{false};
  Hooks hooks;
  hooks.wrap_transport = [](int rank, std::unique_ptr<Transport> below) {
    if (rank != 3) return below;
    return std::unique_ptr<Transport>(new HearsRank1First(std::move(below)));
  };
  hooks.before_set = [](int rank) {
    if (rank == 2) throw Error(ErrorCode::Limit, "too many open files");
  };
  World world(4, {}, no_limits(), hooks);
  world.each([&](Runtime& runtime, int rank) {
    if (rank == 1) {
      runtime.add_set(1, {1, 2, 3});
      made_on_rank_1 = true;
    }
    if (rank == 2) {
      while (!made_on_rank_1) std::this_thread::sleep_for(1ms);
      EXPECT_THROW(runtime.add_set(1, {1, 2, 3}), Error);
    }
    while (runtime.fatal_error() == nullptr) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(runtime.fatal_error()->code(), ErrorCode::OperationFailed);
    EXPECT_STREQ(runtime.fatal_error()->what(),
                 "rank 2: process set 1 can't be made: too many open files");
  });
}

}  // namespace
}  // namespace horon::core
