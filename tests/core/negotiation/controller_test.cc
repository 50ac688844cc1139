// What the simulation does not test: what people are told and when, and how many messages are sent
// while nothing happens.
#include "horon/core/negotiation/controller.h"

#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/wire_format.h"
#include "horon/tests/core/negotiation/test_messages.h"

namespace horon::core {
namespace {

using ::testing::HasSubstr;

constexpr Nanos kMillisecond = 1'000'000;
constexpr Nanos kSecond = 1'000'000'000;

using test_messages::message;
using test_messages::tensor;

using Owned = std::unique_ptr<Controller>;

// `limit`: the time after which a silent rank is dead, and after which a stall is reported.
Owned make(int rank, int size, Nanos limit = 10 * kSecond) {
  Controller::Options options;
  options.rank = rank;
  options.size = size;
  options.dead_after = options.stall_warn_after = limit;
  return std::make_unique<Controller>(options);
}

Owned with_x(int rank, int size) {
  Owned controller = make(rank, size);
  controller->submit({1, "x", tensor("x"), {}, {}});
  controller->take_effects();
  return controller;
}

// Whether this rank may wait for the others at the limit of shutdown() depends on it. The caller of
// a refused call has its error already.
TEST(Controller, ACallBehindARefusedOneIsWorkOfThisRank) {
  const Owned controller = make(1, 2);
  controller->refuse("x", "no good");
  controller->take_effects();
  EXPECT_FALSE(controller->has_own_work());
  EXPECT_FALSE(controller->at_rest());
  controller->submit({1, "x", tensor("x"), {}, {}});
  EXPECT_TRUE(controller->has_own_work());
}

TEST(Controller, AfterTheEndEverySubmissionGetsTheSameError) {
  Owned controller = with_x(1, 2);
  controller->fail(Error(ErrorCode::OperationFailed, "boom"));
  Effects effects = controller->take_effects();
  ASSERT_EQ(effects.finished.size(), 1U);
  controller->submit({2, "y", tensor("y"), {}, {}});
  controller->join(3);
  controller->fail(Error(ErrorCode::Internal, "something else"));
  effects = controller->take_effects();
  ASSERT_EQ(effects.finished.size(), 2U);
  for (const Finished& finished : effects.finished) {
    EXPECT_STREQ(finished.error->what(), "boom");
    EXPECT_EQ(finished.error->code(), ErrorCode::OperationFailed);
  }
  EXPECT_FALSE(effects.fatal.has_value()) << "told once";
}

TEST(Controller, NamesAreUncachedAboveTheLimit) {
  Owned controller = make(0, 1);
  for (EntryId i = 0; i < kIdsMax + 10; ++i) {
    const std::string name = concat("t", i);
    controller->submit({i, name, tensor(name), {}, {}});
    const Effects effects = controller->take_effects();
    ASSERT_EQ(effects.starts.size(), 1U);
    ASSERT_EQ(effects.starts.front().entries.front().name, name);
    controller->batch_finished();
  }
  controller->tick(10 * kSecond);
  const Effects told = controller->take_effects();
  ASSERT_EQ(told.warnings.size(), 1U);
  EXPECT_THAT(told.warnings.front(), HasSubstr("Is there a step number in a name?"));
  controller->tick(20 * kSecond);
  EXPECT_TRUE(controller->take_effects().warnings.empty()) << "told once";
  controller->submit({1, "t65540", tensor("t65540"), {}, {}});
  EXPECT_EQ(controller->take_effects().starts.size(), 1U);
}

// Two ranks whose messages are delivered at once; every Ready of rank 1 is noted.
struct Pair {
  std::vector<Owned> ranks;
  std::vector<Ready> said;
  Ticket ticket = 0;

  Pair() {
    for (int rank = 0; rank < 2; ++rank) ranks.push_back(make(rank, 2));
  }
  void deliver(size_t from) {
    Effects effects = ranks[from]->take_effects();
    EXPECT_FALSE(effects.fatal.has_value()) << effects.fatal->what();
    EXPECT_TRUE(effects.warnings.empty());
    for (size_t i = 0; i < effects.starts.size(); ++i) ranks[from]->batch_finished();
    for (const Outgoing& message : effects.messages) {
      for (const Item& item : decode(message.bytes).items) {
        if (const Ready* ready = std::get_if<Ready>(&item)) said.push_back(*ready);
      }
      ranks[1 - from]->receive(static_cast<int>(from), message.bytes);
    }
  }
  // Submits the same tensor on both ranks.
  void reduce(const std::string& name, int64_t extent) {
    for (const Owned& rank : ranks) rank->submit({++ticket, name, tensor(name, extent), {}, {}});
    deliver(1);
    deliver(0);
    deliver(1);
    for (const Owned& rank : ranks) EXPECT_TRUE(rank->at_rest()) << name << " of " << extent;
  }
};

TEST(Controller, ShapesThatComeAgainAreCached) {
  Pair pair;
  for (int i = 0; i < 6; ++i) pair.reduce("loss", i % 2 == 0 ? 64 : 17);
  ASSERT_EQ(pair.said.size(), 6U);
  EXPECT_EQ(pair.said[1].id, kNoId);
  for (size_t i = 2; i < 6; ++i) EXPECT_NE(pair.said[i].id, kNoId) << i;
}

TEST(Controller, ANameThatChangesItsShapeForEverUsesUpNoNumbers) {
  Pair pair;
  for (EntryId i = 0; i < kIdsMax + 10; ++i) {
    pair.said.clear();
    pair.reduce("rows", 1 + static_cast<int64_t>(i));
    if (testing::Test::HasFailure()) return;
  }
  pair.said.clear();
  pair.reduce("new", 4);
  pair.reduce("new", 4);
  ASSERT_EQ(pair.said.size(), 2U);
  EXPECT_NE(pair.said[1].id, kNoId);
  pair.ranks[0]->tick(10 * kSecond);
  EXPECT_TRUE(pair.ranks[0]->take_effects().warnings.empty());
}

TEST(Controller, TheStallTextForgetsWhatHasCompleted) {
  Pair pair;
  pair.ranks[0]->tick(0);
  pair.ranks[1]->tick(0);
  for (const char* name : {"a", "b"}) {
    pair.ranks[0]->submit({++pair.ticket, name, tensor(name), {}, {}});
  }
  (void)pair.ranks[0]->take_effects();
  pair.ranks[0]->set_time(kSecond);  // one step of more than three seconds would be forgiven
  for (Nanos now = kSecond; now <= 11 * kSecond; now += kSecond) pair.ranks[0]->set_time(now);
  pair.ranks[0]->tick(11 * kSecond);
  const Effects told = pair.ranks[0]->take_effects();
  for (const Outgoing& message : told.messages) pair.ranks[1]->receive(0, message.bytes);
  EXPECT_THAT(pair.ranks[1]->stall_text(), HasSubstr("\"a\""));
  for (const char* name : {"a", "b"}) {
    EXPECT_THAT(pair.ranks[1]->stall_text(), HasSubstr(concat('"', name, '"')));
    pair.ranks[1]->submit({++pair.ticket, name, tensor(name), {}, {}});
    pair.deliver(1);
    pair.deliver(0);
    for (const Owned& rank : pair.ranks) {
      EXPECT_THAT(rank->stall_text(), testing::Not(HasSubstr(concat('"', name, '"'))));
    }
  }
  for (const Owned& rank : pair.ranks) EXPECT_EQ(rank->stall_text(), "");
}

// Two batches run, so the record of the complete entry waits. If the limit of a wait ended
// meanwhile, the text would blame a rank that has come by now.
TEST(Controller, TheStallTextForgetsWhatIsComplete) {
  Pair pair;
  const auto submit = [&](size_t rank, const char* name) {
    pair.ranks[rank]->submit({++pair.ticket, name, tensor(name), {}, {}});
    for (const Outgoing& message : pair.ranks[rank]->take_effects().messages) {
      pair.ranks[1 - rank]->receive(static_cast<int>(rank), message.bytes);
    }
  };
  for (const Owned& rank : pair.ranks) rank->tick(0);
  for (const char* name : {"runs", "runs too"}) {
    submit(1, name);
    submit(0, name);
  }
  submit(0, "late");
  for (Nanos now = kSecond; now <= 11 * kSecond; now += kSecond) pair.ranks[0]->set_time(now);
  pair.ranks[0]->tick(11 * kSecond);
  (void)pair.ranks[0]->take_effects();
  EXPECT_THAT(pair.ranks[0]->stall_text(), HasSubstr("\"late\""));
  submit(1, "late");
  const Effects effects = pair.ranks[0]->take_effects();
  EXPECT_TRUE(effects.starts.empty());
  EXPECT_EQ(pair.ranks[0]->stall_text(), "");
  ASSERT_EQ(effects.messages.size(), 1U);
  const std::vector<Item> items = decode(effects.messages[0].bytes).items;
  ASSERT_EQ(items.size(), 1U);
  ASSERT_TRUE(std::holds_alternative<Stall>(items[0]));
  EXPECT_EQ(std::get<Stall>(items[0]).text, "");
}

// A rank that was late submits one after the other, and each makes the text anew.
TEST(Controller, AReportOfThousandsCostsNoMoreThanOneOfTen) {
  const auto time_of_reports = [](int entries) {
    Coordinator coordinator({.ranks = {0, 1}});
    Ready ready;
    ready.spec = tensor("x");
    for (int i = 0; i < entries; ++i) {
      ready.name = std::to_string(i);
      coordinator.take(0, ready, 0, i);
    }
    EXPECT_THAT(coordinator.stall_report(kSecond, kSecond - 11), HasSubstr("; and 2 more tensors"));
    const std::clock_t begin = std::clock();  // of this process: others may take the core
    for (int i = 0; i < 200; ++i) (void)coordinator.stall_report(kSecond, kMillisecond);
    return std::clock() - begin;
  };
  EXPECT_LT(time_of_reports(200'000), 5 * time_of_reports(12) + CLOCKS_PER_SEC / 50);
}

// Rank 0's controller after it left a set of two by shutdown() or leave(); rank 1 says nothing.
Owned left_alone(bool by_leave) {
  Controller::Options options;
  options.size = 2;
  options.may_leave = true;
  options.stall_warn_after = kSecond;
  auto controller = std::make_unique<Controller>(options);
  controller->tick(0);
  by_leave ? controller->leave() : controller->shutdown();
  (void)controller->take_effects();
  for (Nanos now = 0; now < 8 * kSecond; now += 100 * kMillisecond) controller->tick(now);
  return controller;
}

// After that, it is no fault if a member stands still for a while, or never leaves.
TEST(Controller, AMemberThatHasLeftAsksNobodyAndReportsNobody) {
  const Owned leaves = left_alone(true);
  EXPECT_FALSE(leaves->waits());
  EXPECT_TRUE(leaves->take_effects().messages.empty());
  EXPECT_EQ(leaves->stall_text(), "");
  const Owned waits = left_alone(false);
  EXPECT_TRUE(waits->waits());
  EXPECT_FALSE(waits->take_effects().messages.empty()) << "a Ping";
  waits->leave();
  EXPECT_TRUE(waits->waits()) << "too late";
  leaves->shutdown();  // of the job: now it is waited for
  EXPECT_TRUE(leaves->waits());
}

// A stall that lasts is reported again after 1, 2, 4 ... seconds; a new one after the first second.
TEST(Controller, WarningsOfAStallThatLastsBecomeRare) {
  const Owned coordinator = make(0, 2, kSecond);
  std::vector<Nanos> told;
  std::vector<bool> has_cure;
  Nanos now = 0;
  const auto run_until = [&](Nanos end) {
    for (; now < end; now += 100 * kMillisecond) {
      coordinator->receive(1, message(Ping{}));  // it lives
      coordinator->tick(now);
      for (const std::string& warning : coordinator->take_effects().warnings) {
        EXPECT_TRUE(warning.starts_with("stalled: ")) << warning;
        told.push_back(now / kSecond);
        has_cure.push_back(warning.ends_with("; set HORON_STALL_ABORT_S to end such a job"));
      }
    }
  };
  run_until(kSecond);
  coordinator->submit({1, "x", tensor("x"), {}, {}});
  run_until(20 * kSecond);
  EXPECT_EQ(told, (std::vector<Nanos>{2, 4, 8, 16}));
  EXPECT_EQ(has_cure, (std::vector<bool>{false, true, true, true}));
  told.clear();
  coordinator->submit({2, "y", tensor("y"), {}, {}});
  run_until(32 * kSecond);
  EXPECT_EQ(told, (std::vector<Nanos>{21, 23, 27}));
}

// A machine that slept for a night finds its job as it was.
TEST(Controller, ATimeInWhichThisProcessStoodStillIsNobodysFault) {
  for (const bool answers : {true, false}) {
    Controller::Options options;
    options.size = 2;
    options.dead_after = answers ? 0 : 5 * kSecond;
    options.stall_abort_after = answers ? 5 * kSecond : 0;
    Controller controller(options);
    controller.tick(0);
    controller.submit({1, "x", tensor("x"), {}, {}});
    Nanos now = 0;
    const auto ends = [&](Nanos later) {
      controller.tick(now += later);
      return controller.take_effects().fatal.has_value();
    };
    EXPECT_FALSE(ends(kSecond));
    EXPECT_FALSE(ends(10'000 * kSecond));
    EXPECT_FALSE(ends(3 * kSecond));
    EXPECT_TRUE(ends(2 * kSecond));
  }
}

// The first call in a while is no reason to ask at once whether the others live.
TEST(Controller, WhoBeginsToWaitAsksNobodyYet) {
  for (const int call : {0, 1, 2}) {
    const Owned rank = make(1, 2);
    for (Nanos now = 0; now <= 10 * kSecond; now += kSecond) rank->tick(now);
    if (call == 0) rank->submit({1, "x", tensor("x"), {}, {}});
    if (call == 1) rank->join(1);
    if (call == 2) rank->shutdown();
    rank->tick(10 * kSecond + kMillisecond);
    const Effects effects = rank->take_effects();
    ASSERT_EQ(effects.messages.size(), 1U);
    EXPECT_EQ(decode(effects.messages[0].bytes).items.size(), 1U);
  }
}

// Nothing else may ever make this rank ask, and shutdown() waits for the answer.
TEST(Controller, WhoIsGreetedMustAnswer) {
  for (const bool answers : {true, false}) {
    const Owned rank = make(0, 2);
    rank->tick(0);
    rank->greet();
    rank->take_effects();
    if (answers) rank->receive(1, message(Pong{1}));
    for (Nanos now = 0; now <= 10 * kSecond; now += kSecond) rank->tick(now);
    EXPECT_EQ(rank->take_effects().fatal.has_value(), !answers);
  }
}

// Its other sets may run on.
TEST(Controller, BehindItsEndAMemberAnswersAndHearsOfErrors) {
  for (const int me : {0, 1}) {
    const Owned rank = make(me, 3);
    rank->shutdown();
    if (me == 0) {
      rank->receive(1, message(Shutdown{}));
      rank->receive(2, message(Shutdown{}));
    } else {
      rank->receive(0, message(Stall{"ranks 0 and 1 called shutdown(); not yet: rank 2"}));
      EXPECT_NE(rank->stall_text(), "");
      rank->receive(0, message(Bye{}));
    }
    EXPECT_TRUE(rank->take_effects().bye);
    EXPECT_EQ(rank->stall_text(), "");
    rank->receive(me == 0 ? 1 : 0, message(Ping{1}));
    EXPECT_EQ(rank->take_effects().messages.size(), 1U) << "it asks nobody itself";
    rank->receive(me == 0 ? 1 : 0, message(Abort{ErrorCode::PeerDead, "rank 5 has died"}));
    EXPECT_TRUE(rank->take_effects().fatal.has_value());
  }
}

// Runs a job whose last rank submits nothing, with a look every millisecond, and counts messages.
std::map<std::pair<int, int>, int> idle_messages(int size, Nanos time, Nanos limit = 10 * kSecond) {
  std::vector<Owned> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(make(rank, size, limit));
  std::map<std::pair<int, int>, int> count;
  for (int rank = 0; rank + 1 < size; ++rank) ranks[rank]->submit({1, "x", tensor("x"), {}, {}});
  for (Nanos now = 0; now < time; now += kMillisecond) {
    for (int from = 0; from < size; ++from) {
      ranks[from]->tick(now);
      for (const Outgoing& message : ranks[from]->take_effects().messages) {
        ++count[{from, message.to}];
        ranks[message.to]->receive(from, message.bytes);
      }
    }
  }
  return count;
}

// Pings and Pongs: at most about one of each per second and pair. And the coordinator's report of
// the stall, each time that the stall has become twice as old.
TEST(Controller, WaitingRanksAskRarely) {
  for (const auto& [pair, messages] : idle_messages(10, 9 * kSecond)) {
    EXPECT_LE(messages, 2 * 9 + 1 + 4) << pair.first << " -> " << pair.second;
    EXPECT_TRUE(pair.first == 0 || pair.second == 0);
  }
}

TEST(Controller, WithoutLimitsNobodyIsAskedOrTold) {
  const std::map<std::pair<int, int>, int> only_submissions = {{{1, 0}, 1}, {{2, 0}, 1}};
  EXPECT_EQ(idle_messages(4, 9 * kSecond, 0), only_submissions);
  const Owned of_pair = make(1, 2, 0);
  of_pair->greet();
  EXPECT_EQ(of_pair->take_effects().messages.size(), 1U) << "the other one may not know the set";
}

}  // namespace
}  // namespace horon::core
