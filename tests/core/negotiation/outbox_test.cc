// How items for many members are sent: how often they are encoded, and which member gets what.
#include "horon/core/negotiation/outbox.h"

#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/negotiation/told_extents.h"
#include "horon/core/negotiation/wire_format.h"

namespace horon::core {
namespace {

Plan plan_of(EntryId id) {
  Plan plan;
  plan.batches.resize(1);
  plan.batches.front().entries.emplace_back().id = id;
  return plan;
}

std::vector<Outgoing> packed(Outbox& outbox) {
  std::vector<Outgoing> messages;
  outbox.pack(0, 0, messages);
  return messages;
}

std::set<const std::byte*> payloads(const std::vector<Outgoing>& messages) {
  std::set<const std::byte*> places;
  for (const Outgoing& message : messages) places.insert(message.bytes.data());
  return places;
}

// A plan of many tensors is long, and there may be thousands of members.
TEST(Outbox, APlanForAllMembersIsThereOnce) {
  constexpr size_t members = 100;
  Outbox outbox(0, std::vector<int>(members));
  outbox.to_all(plan_of(7));
  const std::vector<Outgoing> messages = packed(outbox);
  EXPECT_EQ(messages.size(), members - 1);
  EXPECT_EQ(payloads(messages).size(), 1);
  EXPECT_EQ(std::get<Plan>(decode(messages.back().bytes).items.at(0)).batches.size(), 1);
}

TEST(Outbox, ThereIsOnePayloadForTheFirstOfEachHostAndOneForTheOthers) {
  constexpr size_t members = 40;
  std::vector<int> host_of;
  for (size_t member = 0; member < members; ++member) {
    host_of.push_back(static_cast<int>(member / 10));
  }
  Outbox outbox(0, host_of);
  outbox.to_all(plan_of(7));
  outbox.to_hosts({});
  const std::vector<Outgoing> messages = packed(outbox);
  EXPECT_EQ(messages.size(), members - 1);
  EXPECT_EQ(payloads(messages).size(), 2);
  for (const Outgoing& message : messages) {
    const bool is_first = message.to % 10 == 0;
    EXPECT_EQ(decode(message.bytes).items.size(), is_first ? 2 : 1) << message.to;
  }
}

// Only the first members read rings of other hosts; the others must stay at rest.
TEST(Outbox, ItemsOfTheRingAreForTheFirstOfEachHostAlone) {
  Outbox outbox(0, {0, 0, 1, 1});
  outbox.to_hosts({});
  const std::vector<Outgoing> messages = packed(outbox);
  ASSERT_EQ(messages.size(), 1);
  EXPECT_EQ(messages[0].to, 2);
}

// Many items for several members in turn.
TEST(Outbox, WhatGoesToOneMemberKeepsItsOrder) {
  constexpr uint64_t items = 100;
  Outbox outbox(0, std::vector<int>(4));
  for (uint64_t i = 0; i < items; ++i) {
    for (const int to : {3, 1, 2}) outbox.to_one(to, Ping{i});
  }
  const std::vector<Outgoing> messages = packed(outbox);
  ASSERT_EQ(messages.size(), 3);
  for (const Outgoing& message : messages) {
    uint64_t next = 0;
    for (const Item& item : decode(message.bytes).items) {
      EXPECT_EQ(std::get<Ping>(item).number, next++);
    }
    EXPECT_EQ(next, items);
  }
}

TEST(Outbox, WhatDiffersByMemberIsThereForEach) {
  constexpr size_t members = 10;
  Plan plan = plan_of(7);
  plan.batches.front().entries.front().said_by_all =
      std::make_shared<const SaidByAll>(std::vector<int64_t>(members * members, 1), members);
  Outbox outbox(0, std::vector<int>(members));
  outbox.to_all(plan);
  EXPECT_EQ(payloads(packed(outbox)).size(), members - 1);
}

}  // namespace
}  // namespace horon::core
