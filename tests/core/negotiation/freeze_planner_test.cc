#include "horon/core/negotiation/freeze_planner.h"

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/negotiation/frozen_entries.h"
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
  explicit Log(int need, size_t frozen_max = Gate::kCounters) : planner(need, frozen_max) {}

  // Makes one decision, and returns the places that it freezes.
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
    planner.planned(1, closed, closed.extents.size(), may_freeze);
    return decide(anybody_away);
  }
  // Plans the entry until it is frozen. Returns the number of plans, at most 10,000.
  int plans_until_frozen(const std::string& name = "x") {
    int plans = 1;
    while (plan(entry(name)).empty() && plans < 10'000) ++plans;
    return plans;
  }
  void start(Place place, int times) {
    for (int i = 0; i < times; ++i) planner.note_start(place);
  }
  // A member deviates, and the place thaws.
  void deviate(Place place) {
    EXPECT_TRUE(planner.deviate(place));
    decide();
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

TEST(FreezePlanner, NothingIsFrozenWithoutThoseThatHaveJoined) {
  ClosedEntry some_joined = entry("x");
  some_joined.joined = {1};
  Log log(1);
  EXPECT_THAT(log.plan(some_joined), IsEmpty());
}

TEST(FreezePlanner, EachKindIsFrozen) {
  for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
    Log log(1);
    EXPECT_THAT(log.plan(entry("x", static_cast<CollectiveKind>(kind))), ElementsAre(1));
  }
}

ClosedEntry gathered(std::vector<int64_t> rows) {
  ClosedEntry closed = entry("x", CollectiveKind::Allgather);
  closed.extents = std::move(rows);
  return closed;
}

TEST(FreezePlanner, RowsMustStayTheSame) {
  Log log(3);
  EXPECT_THAT(log.plan(gathered({1, 2})), IsEmpty());
  EXPECT_THAT(log.plan(gathered({1, 2})), IsEmpty());
  EXPECT_THAT(log.plan(gathered({2, 1})), IsEmpty());
  EXPECT_THAT(log.plan(gathered({2, 1})), IsEmpty());
  EXPECT_THAT(log.plan(gathered({2, 1})), ElementsAre(1));
}

TEST(FreezePlanner, MoreNumbersOfRowsThanMembersKeepAreNotFrozen) {
  Log log(1);
  EXPECT_THAT(log.plan(gathered(std::vector<int64_t>(kFrozenExtentsMax + 1, 7))), IsEmpty());
  EXPECT_THAT(log.plan(gathered(std::vector<int64_t>(kFrozenExtentsMax, 7))), ElementsAre(1));
}

// The part of a parameter that the program does not use is absent each time.
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
  log.planner.break_row("x");
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  log.planner.planned(2, entry("x"), 0, true);  // another shape
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
    log.start(place + 1, 100);  // steps until rank 0 writes a checkpoint
    log.deviate(++place);
  }
  EXPECT_EQ(log.plans_until_frozen(), 3);
  log.deviate(++place);
  EXPECT_EQ(log.plans_until_frozen(), 6) << "that one did not pay";
  log.start(place + 1, 24);
  log.deviate(++place);
  EXPECT_EQ(log.plans_until_frozen(), 3);
}

// The number of starts that pay for a Freeze does not grow with the cost of earlier ones.
TEST(FreezePlanner, AsManyStartsPayHoweverManyPlansAreNeeded) {
  Log log(3);
  Place place = 0;
  for (const int need : {3, 6, 12, 24, 48}) {
    EXPECT_EQ(log.plans_until_frozen(), need);
    log.deviate(++place);
  }
  EXPECT_EQ(log.plans_until_frozen(), 96);
  log.start(place + 1, 11);
  log.deviate(++place);
  EXPECT_EQ(log.plans_until_frozen(), 192) << "11 starts are too few";
  log.start(place + 1, 12);
  log.deviate(++place);
  EXPECT_EQ(log.plans_until_frozen(), 3);
}

// Starts of other names do not count for a name.
TEST(FreezePlanner, OnlyItsOwnStartsPayForAName) {
  Log log(3);
  EXPECT_EQ(log.plans_until_frozen("x"), 3);
  EXPECT_EQ(log.plans_until_frozen("y"), 3);
  log.start(2, 1000);
  log.deviate(1);
  EXPECT_EQ(log.plans_until_frozen("x"), 6) << "it never started";
  log.deviate(2);
  EXPECT_EQ(log.plans_until_frozen("y"), 3);
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
    log.planner.planned(i + 1, entry("t" + std::to_string(i)), 0, true);
  }
  EXPECT_EQ(log.decide().size(), Gate::kCounters);
  EXPECT_FALSE(log.planner.ran_out());
  EXPECT_THAT(log.plan(entry("x")), IsEmpty());
  EXPECT_TRUE(log.planner.ran_out());
  EXPECT_TRUE(log.planner.deviate(5));
  EXPECT_THAT(log.plan(entry("x")), ElementsAre(5 + Gate::kCounters));
}

// Calls without names are numbered: each number comes a few times and never again.
TEST(FreezePlanner, NamesThatComeNoMoreGiveTheirPlacesUp) {
  Log log(3);
  int frozen = 0;
  for (int i = 0; i < 5000; ++i) {
    for (int call = 0; call < 3; ++call) {
      frozen += static_cast<int>(log.plan(entry("call." + std::to_string(i))).size());
    }
  }
  EXPECT_GT(frozen, 2 * static_cast<int>(Gate::kCounters)) << "no place was used again";
  EXPECT_EQ(log.plans_until_frozen("x"), 3);
  EXPECT_TRUE(log.planner.is_frozen("x"));
}

// The numbers begin anew, so that each name comes again, but late.
TEST(FreezePlanner, ANameThatComesMoreOftenThanTheOthersGetsAPlace) {
  constexpr size_t places = 100;
  Log log(3, places);
  std::map<std::string, Place> place_of;
  size_t thaws = 0;
  const auto call = [&](const std::string& name) {
    if (log.planner.is_frozen(name)) return log.start(place_of[name], 1);
    for (const Place place : log.plan(entry(name))) place_of[name] = place;
    thaws += log.thawed.size();
  };
  for (size_t i = 0; i < 50 * places; ++i) {
    call("call." + std::to_string(i % places));
    if (i >= 10 * places && i % 10 == 0) call("x");
  }
  EXPECT_TRUE(log.planner.is_frozen("x"));
  EXPECT_EQ(thaws, 1U) << "the name that made room for it must not take another one's place";
}

TEST(FreezePlanner, TheNameThatStartedLongestAgoGivesItsPlaceUp) {
  Log log(2, 3);
  EXPECT_EQ(log.plans_until_frozen("a"), 2);
  EXPECT_EQ(log.plans_until_frozen("b"), 2);
  EXPECT_EQ(log.plans_until_frozen("c"), 2);
  log.start(3, 1);
  log.start(2, 1);
  log.start(1, 1);
  EXPECT_EQ(log.plans_until_frozen("x"), 2);
  EXPECT_THAT(log.thawed, ElementsAre(3));
  EXPECT_FALSE(log.planner.is_frozen("c"));
  EXPECT_TRUE(log.planner.is_frozen("x"));
  EXPECT_TRUE(log.planner.deviate(3)) << "a member says late that it thaws";
  log.decide();
  EXPECT_THAT(log.thawed, IsEmpty());
}

// Otherwise each would lose its place before its turn comes.
TEST(FreezePlanner, NamesThatTakeTurnsKeepTheirPlaces) {
  constexpr size_t places = 100;
  for (const size_t names : {101, 130, 250, 1000}) {
    Log log(3, places);
    std::vector<std::string> frozen;
    size_t thaws = 0;
    for (int round = 0; round < 50; ++round) {
      for (size_t i = 0; i < names; ++i) {
        const std::string name = "t" + std::to_string(i);
        if (log.planner.is_frozen(name)) {
          log.start(static_cast<Place>(i + 1), 1);  // places in the order in which they were frozen
        } else {
          log.plan(entry(name));
          thaws += log.thawed.size();
        }
      }
    }
    EXPECT_EQ(thaws, 0U) << names << " names";
    EXPECT_TRUE(log.planner.is_frozen("t99"));
    EXPECT_TRUE(log.planner.ran_out());
  }
}

// Whatever the order of the names, each costs a bounded number of freezes that do not pay.
TEST(FreezePlanner, NamesThatComeAtRandomDoNotFreezeAndThawForEver) {
  constexpr size_t places = 16;
  Log log(3, places);
  std::map<std::string, Place> place_of;
  std::mt19937 random(1);
  int early = 0;
  int late = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::string name = "t" + std::to_string(random() % 100);
    if (log.planner.is_frozen(name)) {
      log.start(place_of[name], 1);
      continue;
    }
    for (const Place place : log.plan(entry(name))) place_of[name] = place;
    (i < 100'000 ? early : late) += static_cast<int>(log.thawed.size());
  }
  EXPECT_LT(early + late, 2000);
  EXPECT_LT(late, early);
}

}  // namespace
}  // namespace horon::core
