#include "horon/core/negotiation/freeze_planner.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/negotiation/coordinator.h"
#include "horon/core/negotiation/gate.h"

namespace horon::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

ClosedEntry entry(const std::string& name, CollectiveKind kind = CollectiveKind::Allreduce) {
  auto spec = std::make_shared<EntrySpec>();
  spec->kind = kind;
  spec->parts = {{name, {4}}};
  return {name, spec, {}, {}, {}};
}

// A planner with a log.
class Log {
 public:
  explicit Log(int need) : planner(need) {}

  // One decision; the places that it freezes.
  std::vector<Place> decide(bool anybody_away = false) {
    std::vector<Item> log;
    planner.thaw(log, position_);
    planner.freeze(log, position_, anybody_away);
    position_ += log.size();
    std::vector<Place> frozen;
    thawed.clear();
    for (const Item& item : log) {
      if (const auto* freeze = std::get_if<Freeze>(&item)) frozen = freeze->places;
      if (const auto* thaw = std::get_if<Thaw>(&item)) thawed = thaw->places;
    }
    return frozen;
  }
  std::vector<Place> plan(const ClosedEntry& closed, bool may_freeze = true,
                          bool anybody_away = false) {
    planner.planned(1, closed, may_freeze);
    return decide(anybody_away);
  }
  // Plans x until it is frozen; how often that took.
  int plans_until_frozen() {
    int plans = 1;
    while (plan(entry("x")).empty()) ++plans;
    return plans;
  }

  FreezePlanner planner;
  std::vector<Place> thawed;  // by the last decision

 private:
  uint64_t position_ = 0;
};

TEST(FreezePlanner, FreezesWhatComesAgainAndAgain) {
  Log log(3);
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  EXPECT_THAT(log.plan(entry("x")), ElementsAre(1));
  EXPECT_TRUE(log.planner.is_frozen("x"));
  EXPECT_FALSE(log.planner.is_frozen("y"));
}

TEST(FreezePlanner, ZeroMeansNever) {
  Log log(0);
  for (int i = 0; i < 10; ++i) EXPECT_THAT(log.plan(entry("x")), IsEmpty());
}

TEST(FreezePlanner, WhatMayDifferNextTimeIsNotFrozen) {
  ClosedEntry some_joined = entry("x");
  some_joined.joined = {1};
  for (const ClosedEntry& closed :
       {some_joined, entry("x", CollectiveKind::Allgather), entry("x", CollectiveKind::Alltoall),
        entry("x", CollectiveKind::Gather), entry("x", CollectiveKind::Scatter)}) {
    Log log(1);
    EXPECT_THAT(log.plan(closed), IsEmpty());
  }
  for (const CollectiveKind kind : {CollectiveKind::Allreduce, CollectiveKind::Broadcast,
                                    CollectiveKind::Barrier, CollectiveKind::Reducescatter}) {
    Log log(1);
    EXPECT_THAT(log.plan(entry("x", kind)), ElementsAre(1));
  }
}

// A parameter that the program does not use is absent each time.
TEST(FreezePlanner, PartsMayBeAbsentIfTheyAlwaysAre) {
  Log log(2);
  ClosedEntry some_absent = entry("x");
  some_absent.produced = {false};
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  EXPECT_THAT(log.plan(some_absent), IsEmpty());
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  EXPECT_THAT(log.plan(some_absent), IsEmpty());
  EXPECT_THAT(log.plan(some_absent), ElementsAre(1));
}

TEST(FreezePlanner, TheRowMustNotBeBroken) {
  Log log(2);
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  EXPECT_THAT(log.plan(entry("x"), false), IsEmpty());  // a broadcast that was fused
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  log.planner.not_planned("x");
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  log.planner.planned(2, entry("x"), true);  // another shape
  EXPECT_THAT(log.decide(), IsEmpty());
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  EXPECT_THAT(log.plan(entry("x")), ElementsAre(1));
}

TEST(FreezePlanner, NothingIsFrozenWhileAnybodyIsAway) {
  Log log(1);
  EXPECT_THAT(log.plan(entry("x"), true, true), IsEmpty());
  EXPECT_THAT(log.decide(), IsEmpty()) << "only the decision that plans it may freeze it";
  EXPECT_THAT(log.plan(entry("x")), ElementsAre(1));
}

TEST(FreezePlanner, EachDeviationDoublesTheNeedUpToALimit) {
  Log log(3);
  Place place = 0;
  for (const int need : {3, 6, 12, 24, 48, 96, 192, 384, 384}) {
    EXPECT_EQ(log.plans_until_frozen(), need);
    EXPECT_TRUE(log.planner.deviate(++place));
    EXPECT_TRUE(log.planner.deviate(place)) << "a second member says the same";
    log.decide();
    EXPECT_THAT(log.thawed, ElementsAre(place));
    EXPECT_TRUE(log.planner.deviate(place)) << "and a third one late";
    log.decide();
    EXPECT_THAT(log.thawed, IsEmpty());
  }
  EXPECT_FALSE(log.planner.deviate(kNoPlace));
  EXPECT_FALSE(log.planner.deviate(place + 1)) << "nobody was given that";
}

TEST(FreezePlanner, ADeviationNowAndThenIsForgiven) {
  Log log(3);
  Place place = 0;
  for (int pause = 0; pause < 20; ++pause) {
    EXPECT_EQ(log.plans_until_frozen(), 3);
    log.planner.note_starts(100);  // steps until rank 0 writes a checkpoint
    EXPECT_TRUE(log.planner.deviate(++place));
    log.decide();
  }
  EXPECT_EQ(log.plans_until_frozen(), 3);
  EXPECT_TRUE(log.planner.deviate(++place));
  log.decide();
  EXPECT_EQ(log.plans_until_frozen(), 6) << "that one did not pay";
  log.planner.note_starts(24);
  EXPECT_TRUE(log.planner.deviate(++place));
  log.decide();
  EXPECT_EQ(log.plans_until_frozen(), 3);
}

// A pipeline of frozen entries keeps batches running for ever; what is negotiated beside them must
// wait for those alone that had begun before it.
TEST(Coordinator, FrozenStartsDoNotStarveWhatIsNegotiated) {
  Coordinator coordinator(Coordinator::Options{});
  coordinator.frozen_started(3, 3);
  Ready ready;
  ready.name = "y";
  ready.spec = entry("y").spec;
  coordinator.take(0, ready, 0, 0);
  int ends = 0;
  while (coordinator.decide().empty()) {
    ASSERT_LT(ends++, 10) << "never planned";
    coordinator.frozen_started(1, 1);
    coordinator.batch_enqueued();
    coordinator.batch_finished();
  }
  EXPECT_EQ(ends, 2) << "of three that ran one may go on";
}

// Broadcasts that are given out together fuse; one that happened to be alone must not stay so.
TEST(Coordinator, ABroadcastThatIsAloneByLuckIsNotFrozen) {
  for (const bool busy : {false, true}) {
    Coordinator::Options options;
    options.freeze_after = 1;
    Coordinator coordinator(options);
    if (busy) coordinator.frozen_started(1, 1);
    Ready ready;
    ready.name = "x";
    ready.spec = entry("x", CollectiveKind::Broadcast).spec;
    coordinator.take(0, ready, 0, 0);
    EXPECT_FALSE(coordinator.decide().empty());
    EXPECT_EQ(coordinator.any_frozen(), !busy);
  }
}

TEST(FreezePlanner, AMemberThatGoesThawsAllAndIsDropped) {
  Log log(2);
  EXPECT_EQ(log.plans_until_frozen(), 2);  // the log's first record
  EXPECT_TRUE(log.planner.drops_away(1));  // has seen the Freeze, but it is frozen
  EXPECT_TRUE(log.planner.drops_away(0));  // another member
  log.decide();
  EXPECT_THAT(log.thawed, ElementsAre(1));  // the second record
  EXPECT_TRUE(log.planner.drops_away(1));   // said before it saw the Thaw
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  EXPECT_THAT(log.plan(entry("x")), IsEmpty()) << "it will come again: no Freeze meanwhile";
  EXPECT_FALSE(log.planner.drops_away(2));
  EXPECT_EQ(log.plans_until_frozen(), 1) << "that was no fault of x, and the row went on";
}

TEST(FreezePlanner, CountersRunOutAndAreUsedAgain) {
  Log log(1);
  for (uint32_t i = 0; i < Gate::kCounters; ++i) {
    log.planner.planned(i + 1, entry("t" + std::to_string(i)), true);
  }
  EXPECT_EQ(log.decide().size(), Gate::kCounters);
  EXPECT_FALSE(log.planner.ran_out());
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  EXPECT_TRUE(log.planner.ran_out());
  EXPECT_TRUE(log.planner.deviate(5));
  EXPECT_THAT(log.plan(entry("x")), ElementsAre(5 + Gate::kCounters));
}

}  // namespace
}  // namespace horon::core
