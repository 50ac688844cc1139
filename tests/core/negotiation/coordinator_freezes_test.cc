// What the coordinator plans beside frozen entries, and what it reports to the planner of freezes.
#include <cstdint>
#include <memory>
#include <numeric>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/negotiation/coordinator.h"

namespace horon::core {
namespace {

SpecPtr spec_of(CollectiveKind kind, int64_t rows) {
  auto spec = std::make_shared<EntrySpec>();
  spec->kind = kind;
  spec->parts = {{"x", {rows}}};
  return spec;
}

// A pipeline of frozen entries keeps batches running for ever; a negotiated entry must wait only
// for those that had begun before it.
TEST(Coordinator, FrozenStartsDoNotStarveWhatIsNegotiated) {
  Coordinator coordinator(Coordinator::Options{});
  coordinator.frozen_started(3, {});
  Ready ready;
  ready.name = "y";
  ready.spec = spec_of(CollectiveKind::Allreduce, 4);
  coordinator.take(0, ready, 0, 0);
  int ends = 0;
  while (coordinator.decide().empty()) {
    ASSERT_LT(ends++, 10) << "never planned";
    coordinator.frozen_started(1, {});
    coordinator.batch_enqueued();
    coordinator.batch_finished();
  }
  EXPECT_EQ(ends, 2) << "of three that ran one may go on";
}

// Broadcasts that are planned together fuse; one that happened to be alone must not stay alone.
TEST(Coordinator, ABroadcastThatIsAloneByLuckIsNotFrozen) {
  for (const bool busy : {false, true}) {
    Coordinator::Options options;
    options.freeze_after = 1;
    Coordinator coordinator(options);
    if (busy) coordinator.frozen_started(1, {});
    Ready ready;
    ready.name = "x";
    ready.spec = spec_of(CollectiveKind::Broadcast, 4);
    coordinator.take(0, ready, 0, 0);
    EXPECT_FALSE(coordinator.decide().empty());
    EXPECT_EQ(coordinator.any_frozen(), !busy);
  }
}

// The name takes more shapes in turn than it keeps ids, so that one id stands for each in turn.
TEST(Coordinator, AnIdThatStandsForAnotherShapeBeginsItsRowAnew) {
  Coordinator::Options options;
  options.freeze_after = 3;
  Coordinator coordinator(options);
  const auto freezes_with_rows = [&](int64_t rows) {
    Ready ready;
    ready.name = "x";
    ready.spec = spec_of(CollectiveKind::Allreduce, rows);
    coordinator.take(0, ready, coordinator.log_size(), 0);
    EXPECT_FALSE(coordinator.decide().empty());
    coordinator.batch_enqueued();
    coordinator.batch_finished();
    return coordinator.any_frozen();
  };
  for (const int64_t rows : {1, 2, 3, 4, 1, 1}) EXPECT_FALSE(freezes_with_rows(rows));
  EXPECT_FALSE(freezes_with_rows(5)) << "it has the id of the first shape, and came once";
  EXPECT_FALSE(freezes_with_rows(5));
  EXPECT_TRUE(freezes_with_rows(5));
}

// Each of 100 members says 100 numbers and is told 201; all of them say 10,000.
TEST(Coordinator, AnAlltoallAmongManyIsFrozenByWhatEachMemberKeeps) {
  constexpr int members = 100;
  Coordinator::Options options;
  options.freeze_after = 1;
  options.ranks.resize(members);
  std::iota(options.ranks.begin(), options.ranks.end(), 0);
  options.host_of.assign(members, 0);
  Coordinator coordinator(options);
  Ready ready;
  ready.name = "x";
  ready.spec = spec_of(CollectiveKind::Alltoall, members);
  ready.extents.assign(members, 1);
  for (int from = 0; from < members; ++from) coordinator.take(from, ready, 0, 0);
  EXPECT_FALSE(coordinator.decide().empty());
  EXPECT_TRUE(coordinator.any_frozen());
}

// A name whose starts were not counted would seem never to pay for its place, and in the end would
// be negotiated each time.
TEST(Coordinator, ANameThatHasStartedOftenFreezesAgainSoon) {
  for (const int starts : {0, 4}) {
    Coordinator::Options options;
    options.freeze_after = 1;
    Coordinator coordinator(options);
    Ready ready;
    ready.name = "x";
    ready.spec = spec_of(CollectiveKind::Allreduce, 4);
    coordinator.take(0, ready, 0, 0);
    EXPECT_FALSE(coordinator.decide().empty());
    const std::vector<Place> place = {1};
    for (int i = 0; i < starts; ++i) coordinator.frozen_started(1, place);
    coordinator.take(0, Deviate{1}, coordinator.log_size(), 0);
    EXPECT_FALSE(coordinator.decide().empty());
    for (int i = 0; i <= starts; ++i) {
      coordinator.batch_enqueued();
      coordinator.batch_finished();
    }
    EXPECT_FALSE(coordinator.any_frozen());
    coordinator.take(0, ready, coordinator.log_size(), 0);
    EXPECT_FALSE(coordinator.decide().empty());
    EXPECT_EQ(coordinator.any_frozen(), starts > 0);
  }
}

// Otherwise join() would return before a collective of its round has begun.
TEST(Coordinator, WhatIsCompleteIsPlannedBeforeJoinReturns) {
  Coordinator::Options options;
  options.ranks = {0, 1};
  Coordinator coordinator(options);
  coordinator.frozen_started(2, {});  // planning waits for these
  Ready ready;
  ready.name = "y";
  ready.spec = spec_of(CollectiveKind::Allreduce, 4);
  coordinator.take(0, ready, 0, 0);
  coordinator.take(1, Join{}, 0, 0);
  EXPECT_TRUE(coordinator.decide().empty());
  coordinator.take(0, Join{}, 0, 0);
  const std::vector<Item> log = coordinator.decide();
  ASSERT_EQ(log.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<Plan>(log[0]));
  EXPECT_TRUE(std::holds_alternative<Joined>(log[1]));
}

// A member's Join has waited behind its second Eager for x. Once another member's elements for the
// first have come, nothing else need come, so the Thaw must not wait for the next decision.
TEST(Coordinator, AThawOfAWordThatHasWaitedIsDueAtOnce) {
  Coordinator::Options options;
  options.ranks = {0, 1};
  options.host_of = {0, 1};
  options.freeze_after = 1;
  options.eager = true;
  Coordinator coordinator(options);
  Ready ready;
  ready.name = "x";
  ready.spec = spec_of(CollectiveKind::Allreduce, 4);
  ready.eager = true;
  for (const int from : {0, 1}) coordinator.take(from, ready, 0, 0);
  const std::vector<Item> first = coordinator.decide();
  ASSERT_EQ(first.size(), 1U) << "what is eager is not frozen";
  Eager eager;
  eager.id = std::get<Plan>(first[0]).batches.at(0).entries.at(0).id;
  ready.name = "w";
  ready.eager = false;
  for (const int from : {0, 1}) coordinator.take(from, ready, coordinator.log_size(), 0);
  EXPECT_FALSE(coordinator.decide().empty());
  ASSERT_TRUE(coordinator.any_frozen());

  for (const Item& item : {Item{eager}, Item{eager}, Item{Join{}}}) {
    coordinator.take(1, item, coordinator.log_size(), 0);
  }
  EXPECT_TRUE(coordinator.decide().empty());
  coordinator.take(0, eager, coordinator.log_size(), 0);
  const std::vector<Item> log = coordinator.decide();
  ASSERT_EQ(log.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Thaw>(log[0]));
}

}  // namespace
}  // namespace horon::core
