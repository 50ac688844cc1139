#include "horon/core/negotiation/entry_ids.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

SpecPtr shape(int64_t extent) {
  EntrySpec spec;
  spec.parts = {{"x", {extent}}};
  return std::make_shared<const EntrySpec>(spec);
}

TEST(EntryIds, OneNumberForEachNameAndSpec) {
  EntryIds ids;
  EXPECT_EQ(ids.find("a", shape(1)), kNoId);
  const EntryId a1 = ids.give("a", shape(1));
  const EntryId b1 = ids.give("b", shape(1));
  const EntryId a2 = ids.give("a", shape(2));
  EXPECT_EQ(ids.find("a", shape(1)), a1);
  EXPECT_EQ(ids.find("a", shape(2)), a2);
  EXPECT_EQ(ids.find("b", shape(1)), b1);
  EXPECT_EQ(ids.find("b", shape(2)), kNoId);
  EXPECT_EQ(ids.get(a2)->name, "a");
  EXPECT_EQ(ids.get(kNoId), nullptr);
  EXPECT_EQ(ids.get(4), nullptr);
}

TEST(EntryIds, TheOldestShapeOfANameGivesItsNumberAway) {
  EntryIds ids;
  const auto count = static_cast<int64_t>(EntryIds::kSpecsPerName);
  for (int64_t extent = 1; extent <= count; ++extent) ids.give("a", shape(extent));
  EXPECT_EQ(ids.give("a", shape(100)), 1U);
  EXPECT_EQ(ids.find("a", shape(1)), kNoId);
  EXPECT_EQ(ids.find("a", shape(100)), 1U);
  EXPECT_EQ(ids.give("a", shape(101)), 2U);
  EXPECT_EQ(ids.give("b", shape(1)), static_cast<EntryId>(count) + 1);
}

TEST(EntryIds, AMemberFollowsTheCoordinator) {
  EntryIds coordinator, member;
  for (int i = 0; i < 200; ++i) {
    const std::string name = i % 3 == 0 ? "a" : "b";
    const SpecPtr spec = shape(i % 7);
    if (coordinator.find(name, spec) != kNoId) continue;
    EXPECT_TRUE(member.note(coordinator.give(name, spec), name, spec));
    EXPECT_EQ(member.find(name, spec), coordinator.find(name, spec));
  }
}

TEST(EntryIds, AMemberRefusesWhatNoCoordinatorGives) {
  EntryIds member;
  EXPECT_FALSE(member.note(2, "a", shape(1))) << "out of turn";
  EXPECT_TRUE(member.note(1, "a", shape(1)));
  EXPECT_FALSE(member.note(1, "b", shape(1))) << "it is of another name";
  for (EntryId id = 2; id <= EntryIds::kSpecsPerName; ++id) {
    EXPECT_TRUE(member.note(id, "a", shape(id)));
  }
  EXPECT_FALSE(member.note(EntryIds::kSpecsPerName + 1, "a", shape(9)))
      << "one more than a name has";
}

TEST(EntryIds, AFullTableServesTheNamesThatItHas) {
  EntryIds ids;
  const SpecPtr one = shape(1);
  for (EntryId i = 0; i < kIdsMax; ++i) {
    EXPECT_FALSE(ids.used_up());
    ids.give(std::to_string(i), one);
  }
  EXPECT_TRUE(ids.used_up());
  EXPECT_EQ(ids.give("new", one), kNoId);
  EXPECT_EQ(ids.give("7", shape(2)), 8U);
  EXPECT_EQ(ids.find("7", shape(2)), 8U);
  EXPECT_EQ(ids.give("7", shape(3)), 8U) << "it has no other";
  EXPECT_EQ(ids.get(8)->spec->parts, shape(3)->parts);
  EXPECT_EQ(ids.find("7", shape(2)), kNoId);
}

}  // namespace
}  // namespace horon::core
