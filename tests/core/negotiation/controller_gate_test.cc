// The gate beside the log: violations of the protocol, and which rank waits for which.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/negotiation/controller.h"
#include "horon/core/negotiation/ring_gate.h"
#include "horon/core/negotiation/wire_format.h"
#include "horon/tests/core/negotiation/gate_world.h"

namespace horon::core {
namespace {

using namespace gate_world;
using ::testing::HasSubstr;

TEST(ControllerWithGate, MembersThatBreakTheProtocolEndTheJob) {
  const auto frozen = [&](const Item& item) {
    WithGate coordinator(0);
    EXPECT_EQ(coordinator.end_after(ready_by_name("x")), "");
    EXPECT_EQ(coordinator->statistics().freezes, 1U);
    return coordinator.end_after(item, 2);
  };
  EXPECT_THAT(frozen(Deviate{2}), HasSubstr("it names no place"));
  EXPECT_THAT(frozen(Deviate{0}), HasSubstr("it names no place"));
  Ready again;
  again.id = 1;
  EXPECT_THAT(frozen(again), HasSubstr("it said \"x\", which is frozen"));
  EXPECT_EQ(frozen(Join{}), "");
  EXPECT_EQ(frozen(Drained{7}), "");  // dropped with the Shutdown that came before
}

TEST(ControllerWithGate, CoordinatorsThatBreakTheProtocolEndTheJob) {
  const auto after_plan = [&](const Item& item) {
    WithGate member(1);
    EXPECT_EQ(member.end_after(plan_of_x()), "");
    return member.end_after(item);
  };
  EXPECT_EQ(after_plan(Freeze{{1}, {1}}), "");
  EXPECT_THAT(after_plan(Freeze{{2}, {1}}), HasSubstr("an id that was never agreed"));
  EXPECT_THAT(after_plan(Freeze{{1}, {}}), HasSubstr("ids without places"));
  EXPECT_THAT(after_plan(Freeze{{1}, {0}}), HasSubstr("can't be frozen now"));
  EXPECT_THAT(after_plan(Freeze{{1, 1}, {1, 2}}), HasSubstr("can't be frozen now"));
  EXPECT_THAT(after_plan(Thaw{{1}}), HasSubstr("thaws what is not frozen"));
  WithGate unserved(1);
  EXPECT_EQ(unserved.end_after(plan_of_x()), "");
  unserved->submit({2, "x", tensor("x"), {}, {}});
  EXPECT_THAT(unserved.end_after(Freeze{{1}, {1}}), HasSubstr("can't be frozen now"));
  WithGate frozen(1);
  frozen.freeze();
  frozen.gate().append_marker(3);
  EXPECT_THAT(frozen.end_after(Bye{}), HasSubstr("while something is frozen"));
  WithGate again(1);
  again.freeze();
  again.gate().append_marker(3);
  EXPECT_EQ(again.end_after(Thaw{{1}}), "");
  EXPECT_THAT(again.end_after(Freeze{{1}, {1}}), HasSubstr("can't be frozen now"));
}

TEST(ControllerWithGate, WhatNoHostCanSayEndsTheJob) {
  using Kind = RingItem::Kind;
  const auto frozen = [&](const RingItem& first, const RingItem& second, std::vector<int> host_of) {
    WithGate coordinator(0, tensor("x"), {}, std::move(host_of));
    EXPECT_EQ(coordinator.end_after(ready_by_name("x")), "");
    EXPECT_EQ(coordinator.end_after(first, 2), "");
    return coordinator.end_after(second, 2);
  };
  const RingItem filled = {Kind::Filled, 1};
  const std::vector<int> hosts = {0, 1};
  EXPECT_THAT(frozen(filled, filled, hosts), HasSubstr("it can't fill place 1"));
  EXPECT_THAT(frozen(filled, {Kind::Filled, 2}, hosts), HasSubstr("it fills no place"));
  EXPECT_THAT(frozen(filled, {Kind::Filled, 0}, hosts), HasSubstr("it fills no place"));
  EXPECT_THAT(frozen(filled, {Kind::Filled, (uint64_t{1} << 40) + 1}, hosts),
              HasSubstr("it fills no place"));
  EXPECT_THAT(frozen(filled, {Kind::Go, 1}, hosts), HasSubstr("impossible item"));
  WithGate one_host(0);
  EXPECT_EQ(one_host.end_after(ready_by_name("x")), "");
  EXPECT_THAT(one_host.end_after(filled, 2), HasSubstr("it can't fill place 1"));
}

TEST(ControllerWithGate, WhatNoCoordinatorCanSayToAHostEndsTheJob) {
  using Kind = RingItem::Kind;
  const auto after_freeze = [&](const RingItem& entry, std::vector<int> host_of) {
    WithGate member(1, tensor("x"), {}, std::move(host_of));
    EXPECT_EQ(member.end_after(plan_of_x()), "");
    EXPECT_EQ(member.end_after(Freeze{{1}, {1}}), "");
    return member.end_after(entry);
  };
  EXPECT_EQ(after_freeze({Kind::Marker, 3}, {0, 1}), "");
  EXPECT_THAT(after_freeze({Kind::Marker, 3}, {0, 0}), HasSubstr("impossible item"));
  EXPECT_THAT(after_freeze({Kind::Go, 1}, {0, 0}), HasSubstr("impossible item"));
  EXPECT_THAT(after_freeze({Kind::Filled, 1}, {0, 1}), HasSubstr("impossible item"));
  EXPECT_THAT(after_freeze({Kind::Go, uint64_t{1} << 40}, {0, 1}), HasSubstr("impossible item"));
  EXPECT_THAT(after_freeze({Kind::Go, 1}, {0, 1}), HasSubstr("that is not filled here"));
}

// The first member of a host appends what the coordinator has said when the ring has room, and in
// order.
TEST(ControllerWithGate, AHostsFirstMemberWaitsForAMemberThatDoesNotRead) {
  WithGate member(1, tensor("x"), {},
                  {0, 1});  // member 1 of the gate; member 0 of it reads nothing
  member.freeze();
  uint64_t position = 2;
  const auto applies_all = [&] {
    Envelope envelope;
    envelope.items.emplace_back(RingItem{RingItem::Kind::Marker, ++position});
    envelope.items.emplace_back(Unused{"y"});
    member->receive(0, encode(envelope));
    member->take_effects();
    return member->member().applied() == position;
  };
  while (position < 10'000 && applies_all()) continue;
  EXPECT_GT(position, 1000U);
  EXPECT_LT(position, 10'000U);
  EXPECT_EQ(member->member().applied(), position - 1);
  EXPECT_TRUE(member->member().waits_for_room());
  RingGate other = member.gate_of(0);
  for (uint64_t read = 3; read < position; ++read) ASSERT_TRUE(other.next(0).has_value()) << read;
  EXPECT_FALSE(other.next(0).has_value());
  member->take_effects();
  EXPECT_EQ(member->member().applied(), position);
  EXPECT_FALSE(member->member().waits_for_room());
}

// The ring determines the order: a record waits for its marker, even if it has arrived.
TEST(ControllerWithGate, RecordsWaitForTheirMarkers) {
  WithGate member(1);
  member.freeze();
  EXPECT_EQ(member.end_after(Thaw{{1}}), "");
  EXPECT_EQ(member->statistics().thaws, 0U);
  member.gate().append_marker(3);
  member->take_effects();
  EXPECT_EQ(member->statistics().thaws, 1U);
}

// To fill a place as the last member, and to append its Go, are two steps.
TEST(ControllerWithGate, AStartBehindItsThawIsCountedAsVoidAtOnce) {
  WithGate member(1);
  member.freeze();
  member->submit({7, "x", tensor("x"), {}, {}});
  RingGate other = member.gate_of(0);
  EXPECT_TRUE(other.fill(1));
  member.gate().append_marker(3);
  EXPECT_EQ(member.end_after(Thaw{{1}}), "");
  EXPECT_EQ(member->statistics().void_starts, 0U);
  other.append_go(1, false);
  EXPECT_TRUE(member->take_effects().starts.empty());
  EXPECT_EQ(member->statistics().void_starts, 1U);
}

// A program may gather the same rows again and again; other rows are another call.
TEST(ControllerWithGate, RowsOfTheFrozenPlanGoOnAndOtherRowsDeviate) {
  EntrySpec spec;
  spec.kind = CollectiveKind::Allgather;
  spec.parts = {{"x", {3, 2}}};
  const auto x = std::make_shared<const EntrySpec>(spec);
  spec.parts = {{"x", {5, 2}}};
  const auto more_rows = std::make_shared<const EntrySpec>(spec);
  WithGate member(1, x, {3});
  Plan plan = plan_of_x();
  plan.batches.front().entries.front().spec = x;
  plan.batches.front().entries.front().extents = {4, 3};
  EXPECT_EQ(member.end_after(plan), "");
  EXPECT_EQ(member.end_after(Freeze{{1}, {1}}), "");
  member->submit({7, "x", std::make_shared<const EntrySpec>(*x), {}, {3}});
  RingGate other = member.gate_of(0);
  EXPECT_TRUE(other.fill(1));
  other.append_go(1, false);
  const Effects effects = member->take_effects();
  ASSERT_EQ(effects.starts.size(), 1U);
  EXPECT_THAT(effects.starts.front().entries.front().extents, testing::ElementsAre(4, 3));
  EXPECT_TRUE(effects.messages.empty());
  member->submit({8, "x", more_rows, {}, {5}});
  EXPECT_FALSE(other.fill(1)) << "the member has not filled it";
  EXPECT_EQ(member->take_effects().messages.size(), 1U) << "it says that it deviates";
}

// The flags of the plan in front of the Freeze count, not those of an earlier one.
TEST(ControllerWithGate, APartThatWasAbsentBeforeMayBeHere) {
  EntrySpec spec;
  spec.parts = {{"x.0", {4}}, {"x.1", {4}}};
  const auto x = std::make_shared<const EntrySpec>(spec);
  WithGate member(1, x);
  Plan plan = plan_of_x();
  plan.batches.front().entries.front().spec = x;
  EXPECT_EQ(member.end_after(plan), "");
  PlannedEntry& again = plan.batches.front().entries.front();
  again.name.clear();
  again.spec = nullptr;
  again.produced = {true, false};
  member->submit({7, "x", x, {false, true}, {}});
  EXPECT_EQ(member.end_after(plan), "");
  again.produced.clear();
  member->submit({8, "x", x, {}, {}});
  EXPECT_EQ(member.end_after(plan), "");
  EXPECT_EQ(member.end_after(Freeze{{1}, {1}}), "");
  member->submit({9, "x", x, {}, {}});
  EXPECT_TRUE(member->take_effects().messages.empty()) << "it does not deviate";
  RingGate other = member.gate_of(0);
  EXPECT_TRUE(other.fill(1));
  other.append_go(1, false);
  const Effects effects = member->take_effects();
  ASSERT_EQ(effects.starts.size(), 1U);
  EXPECT_TRUE(effects.starts.front().entries.front().produced.empty());
}

// As where nothing is frozen: the other members have no entry that this could end.
TEST(ControllerWithGate, ARefusalOfWhatIsInFlightIsNotSaid) {
  WithGate member(1);
  member.freeze();
  member->submit({7, "x", tensor("x"), {}, {}});
  member->refuse("x", "one call too many");
  EXPECT_TRUE(member->take_effects().messages.empty());
  RingGate other = member.gate_of(0);
  EXPECT_TRUE(other.fill(1));
  other.append_go(1, false);
  EXPECT_EQ(member->take_effects().starts.size(), 1U);
  EXPECT_FALSE(member->member().has_unserved());
}

// Only the rows that go to each rank tell these calls apart.
TEST(ControllerWithGate, RowsThatAreSplitInAnotherWayDeviate) {
  EntrySpec spec;
  spec.kind = CollectiveKind::Alltoall;
  spec.parts = {{"x", {4}}};
  const auto x = std::make_shared<const EntrySpec>(spec);
  WithGate member(1, x, {1, 3});
  Plan plan = plan_of_x();
  plan.batches.front().entries.front().spec = x;
  plan.batches.front().entries.front().extents = {1, 3, 2, 3, 8};
  EXPECT_EQ(member.end_after(plan), "");
  EXPECT_EQ(member.end_after(Freeze{{1}, {1}}), "");
  member->submit({7, "x", x, {}, {3, 1}});
  EXPECT_FALSE(member.gate_of(0).fill(1)) << "the member has not filled it";
  EXPECT_EQ(member->take_effects().messages.size(), 1U) << "it says that it deviates";
}

// Both places have the same counter. A member that was stopped before it appended its Go may do so
// when another Freeze has given the counter a new place.
TEST(ControllerWithGate, ALateStartOfAnEarlierPlaceStartsNothing) {
  WithGate member(1);
  member.freeze();
  member.gate().append_marker(3);
  EXPECT_EQ(member.end_after(Thaw{{1}}), "");
  EXPECT_EQ(member.end_after(Freeze{{1}, {1 + Gate::kCounters}}), "");
  member->submit({7, "x", tensor("x"), {}, {}});
  RingGate other = member.gate_of(0);
  other.append_go(1, false);
  EXPECT_TRUE(member->take_effects().starts.empty());
  EXPECT_EQ(member->statistics().void_starts, 1U);
  EXPECT_TRUE(other.fill(1 + Gate::kCounters));
  other.append_go(1 + Gate::kCounters, false);
  EXPECT_EQ(member->take_effects().starts.size(), 1U);
}

// The coordinator learns once of an entry for which the others do not come. A time in which this
// process stood still itself does not count.
TEST(ControllerWithGate, AnEntryThatWaitsForLongDeviatesOnce) {
  constexpr Nanos kSecond = 1'000'000'000;
  WithGate member(1);
  member.freeze();
  member->tick(kSecond);
  member->submit({7, "x", tensor("x"), {}, {}});
  const auto deviates = [&](Nanos now) {
    member->set_time(now);
    int count = 0;
    for (const Outgoing& message : member->take_effects().messages) {
      for (const Item& item : decode(message.bytes).items) {
        count += std::holds_alternative<Deviate>(item) ? 1 : 0;
      }
    }
    return count;
  };
  EXPECT_EQ(deviates(10 * kSecond), 0) << "it stood still";
  EXPECT_EQ(deviates(10 * kSecond + kSecond / 2), 0);
  EXPECT_EQ(deviates(11 * kSecond + kSecond / 2), 1);
  EXPECT_EQ(deviates(13 * kSecond), 0);
}

// The records may have come to the other members of the host before the markers that permit them.
TEST(ControllerWithGate, AHostsFirstMemberWakesTheOthersForAMarker) {
  WithGate member(1, tensor("x"), {}, {0, 1});
  member.freeze();
  EXPECT_EQ(member.woken(), 0);
  EXPECT_EQ(member.end_after(RingItem{RingItem::Kind::Marker, 3}), "");
  EXPECT_EQ(member.woken(), 1);
}

// A member that has stood still for long finds all entries that it must read.
TEST(ControllerWithGate, ACoordinatorWaitsForAMemberThatDoesNotRead) {
  WithGate coordinator(0);
  EXPECT_EQ(coordinator.end_after(ready_by_name("x")), "");
  Envelope refused;
  refused.applied = 2;
  refused.items.emplace_back(Refused{"y", "no good"});
  int decisions = 0;
  const auto decides = [&] {
    coordinator->refuse("y", "no good");
    coordinator->receive(1, encode(refused));
    return !coordinator->take_effects().messages.empty();
  };
  while (decisions < 10'000 && decides()) ++decisions;
  EXPECT_GT(decisions, 1000);
  EXPECT_LT(decisions, 10'000);
  RingGate other = coordinator.gate_of(1);
  for (int read = 0; read < decisions; ++read) ASSERT_TRUE(other.next(0).has_value()) << read;
  EXPECT_FALSE(other.next(0).has_value());
  EXPECT_FALSE(coordinator->take_effects().messages.empty()) << "it goes on when that has read";
}

// If a job ends before the rest of a batch has been read, it ends every submission once.
TEST(ControllerWithGate, WhatWaitsForTheRestOfItsBatchEndsWithTheJob) {
  WithGate member(1);
  member.freeze();
  member->submit({7, "x", tensor("x"), {}, {}});
  RingGate other = member.gate_of(0);
  EXPECT_TRUE(other.fill(1));
  other.append_go(1, true);
  EXPECT_TRUE(member->take_effects().starts.empty()) << "more belongs to it";
  member->fail(Error(ErrorCode::PeerDead, "gone"));
  const Effects effects = member->take_effects();
  EXPECT_TRUE(effects.starts.empty());
  ASSERT_EQ(effects.finished.size(), 1U);
  EXPECT_EQ(effects.finished.front().ticket, 7U);
}

// For programs that make a new spec in each call: prepared batches are found by the spec's address.
TEST(ControllerWithGate, AFrozenEntryStartsWithOneSpec) {
  WithGate member(1);
  member.freeze();
  RingGate other = member.gate_of(0);
  std::vector<SpecPtr> started;
  for (Ticket call = 7; call < 10; ++call) {
    member->submit({call, "x", tensor("x"), {}, {}});
    EXPECT_TRUE(other.fill(1));
    other.append_go(1, false);
    const Effects effects = member->take_effects();
    ASSERT_EQ(effects.starts.size(), 1U);
    started.push_back(effects.starts.front().entries.front().spec);
    member->batch_finished();
  }
  EXPECT_EQ(started[1], started[0]);
  EXPECT_EQ(started[2], started[0]);
}

TEST(ControllerWithGate, AStartThatNobodyHasFilledEndsTheJob) {
  WithGate member(1);
  member.freeze();
  member.gate().append_go(1, false);
  EXPECT_THAT(member.end_after(Ping{}), HasSubstr("that is not filled here"));
}

}  // namespace
}  // namespace horon::core
