// What each member of an alltoall is told of the rows of all.
#include "horon/core/negotiation/told_extents.h"

#include <limits>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/negotiation/outbox.h"
#include "horon/core/negotiation/wire_format.h"

namespace horon::core {
namespace {

using testing::ElementsAre;

SpecPtr alltoall(size_t parts) {
  auto spec = std::make_shared<EntrySpec>();
  spec->kind = CollectiveKind::Alltoall;
  spec->parts.resize(parts);
  for (TensorPart& part : spec->parts) part.shape = {6, 2};
  return spec;
}

TEST(ToldExtents, AMemberIsToldWhatItSendsAndWhatItGets) {
  // Two members, two parts: what member 0 has for 0 and 1 of each part, and what member 1 has.
  const std::vector<int64_t> said = {1, 2, 3, 4, 50, 60, 70, 80};
  const std::vector<int64_t> told = extents_told_of_alltoall(said, 1, 2);
  EXPECT_THAT(told, ElementsAre(50, 60, 2, 60, 113, 70, 80, 4, 80, 157));
  const std::vector<int> ranks = {3, 5};
  EXPECT_EQ(told.size(), extents_told(*alltoall(2), ranks));
  const ToldOfPart second(told, 1, 2);
  EXPECT_THAT(second.sends, ElementsAre(70, 80));
  EXPECT_THAT(second.gets, ElementsAre(4, 80));
  EXPECT_EQ(second.of_all, 157);
}

TEST(ToldExtents, MembersThatSayTooMuchMakeNoOverflow) {
  constexpr int64_t largest = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> said = {largest, largest, 1, largest};
  EXPECT_THAT(extents_told_of_alltoall(said, 0, 2),
              ElementsAre(largest, largest, largest, 1, largest));
}

// A plan of an alltoall as each of so many members is sent it.
std::vector<Outgoing> sent_to(size_t members) {
  std::vector<int64_t> said(members * members);
  for (size_t i = 0; i < said.size(); ++i) said[i] = static_cast<int64_t>(i % 100);
  Plan plan;
  plan.batches.resize(1);
  PlannedEntry& entry = plan.batches.front().entries.emplace_back();
  entry.id = 7;
  entry.said_by_all = std::make_shared<const std::vector<int64_t>>(said);
  Outbox outbox(0, std::vector<int>(members));
  outbox.to_all(plan);
  std::vector<Outgoing> messages;
  outbox.pack(0, 0, messages);
  EXPECT_EQ(messages.size(), members - 1);
  for (const Outgoing& message : messages) {
    const Envelope envelope = decode(message.bytes);
    const auto& told = std::get<Plan>(envelope.items.at(0)).batches.at(0).entries.at(0).extents;
    EXPECT_EQ(told, extents_told_of_alltoall(said, static_cast<size_t>(message.to), members));
  }
  return messages;
}

TEST(ToldExtents, AMessageGrowsWithTheMembersAndNotWithTheirSquare) {
  const size_t of_few = sent_to(10).front().bytes.size();
  const size_t of_many = sent_to(100).front().bytes.size();
  EXPECT_LT(of_many, 11 * of_few);
}

}  // namespace
}  // namespace horon::core
