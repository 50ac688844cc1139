// The row counts that each member of an alltoall is told.
#include "horon/core/negotiation/told_extents.h"

#include <ctime>
#include <limits>
#include <memory>
#include <random>
#include <vector>

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
  const std::vector<int64_t> told = SaidByAll(said, 2).told_to(1);
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
  EXPECT_THAT(SaidByAll(said, 2).told_to(0), ElementsAre(largest, largest, largest, 1, largest));
}

// Computes each number for this member only, from all that was said.
std::vector<int64_t> made_for_one(const std::vector<int64_t>& said, size_t member, size_t size) {
  const size_t parts = said.size() / (size * size);
  std::vector<int64_t> told;
  for (size_t part = 0; part < parts; ++part) {
    const auto rows = [&](size_t from, size_t to) {
      return said[(from * parts + part) * size + to];
    };
    for (size_t to = 0; to < size; ++to) told.push_back(rows(member, to));
    for (size_t from = 0; from < size; ++from) told.push_back(rows(from, member));
    int64_t of_all = 0;
    for (size_t from = 0; from < size; ++from) {
      for (size_t to = 0; to < size; ++to) of_all += rows(from, to);
    }
    told.push_back(of_all);
  }
  return told;
}

std::vector<int64_t> random_rows(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> rows(count);
  for (int64_t& each : rows) each = random() % 1000;
  return rows;
}

TEST(ToldExtents, EachMemberIsToldWhatOneAloneWouldBe) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const size_t members = 1 + seed % 9;
    const size_t parts = 1 + seed % 4;
    const std::vector<int64_t> said = random_rows(members * members * parts, seed);
    const SaidByAll by_all(said, members);
    for (size_t member = 0; member < members; ++member) {
      EXPECT_EQ(by_all.told_to(member), made_for_one(said, member, members));
    }
  }
}

// The plan of an alltoall for which the members said this, as it is sent to each member.
std::vector<Outgoing> sent_to(size_t members, const std::vector<int64_t>& said) {
  Plan plan;
  plan.batches.resize(1);
  PlannedEntry& entry = plan.batches.front().entries.emplace_back();
  entry.id = 7;
  entry.said_by_all = std::make_shared<const SaidByAll>(said, members);
  Outbox outbox(0, std::vector<int>(members));
  outbox.to_all(plan);
  std::vector<Outgoing> messages;
  outbox.pack(0, 0, messages);
  return messages;
}

std::vector<int64_t> told_by(const Outgoing& message) {
  const Envelope envelope = decode(message.bytes);
  return std::get<Plan>(envelope.items.at(0)).batches.at(0).entries.at(0).extents;
}

TEST(ToldExtents, AMessageGrowsWithTheMembersAndNotWithTheirSquare) {
  size_t of_few = 0;
  for (const size_t members : {size_t{10}, size_t{100}}) {
    const std::vector<int64_t> said = random_rows(members * members, 1);
    const std::vector<Outgoing> messages = sent_to(members, said);
    EXPECT_EQ(messages.size(), members - 1);
    for (const Outgoing& message : messages) {
      EXPECT_EQ(told_by(message), made_for_one(said, static_cast<size_t>(message.to), members));
    }
    const size_t bytes = messages.front().bytes.size();
    if (of_few == 0) of_few = bytes;
    EXPECT_LT(bytes, 11 * of_few);
  }
}

// The coordinator's loop does nothing else meanwhile. Measured in CPU time, which does not depend
// on other programs. Both ways are code of the library, which is compiled in the same way.
TEST(ToldExtents, AllMembersAreToldInMuchLessThanIfTheSumWereMadeForEach) {
  constexpr size_t members = 400;
  const std::vector<int64_t> said = random_rows(members * members, 1);
  const auto seconds = [](const auto& work) {
    const std::clock_t begin = std::clock();
    work();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  size_t sent = 0;
  size_t numbers = 0;
  const double to_all = seconds([&] { sent = sent_to(members, said).size(); });
  const double one_by_one = seconds([&] {
    for (size_t member = 0; member < members; ++member) {
      numbers += SaidByAll(said, members).told_to(member).size();
    }
  });
  EXPECT_EQ(sent, members - 1);
  EXPECT_EQ(numbers, members * (2 * members + 1));
  EXPECT_LT(to_all, one_by_one / 4);
}

}  // namespace
}  // namespace horon::core
