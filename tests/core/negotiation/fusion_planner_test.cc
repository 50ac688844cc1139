#include "horon/core/negotiation/fusion_planner.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/support/spec_changes.h"

namespace horon::core {
namespace {

using ::testing::ElementsAre;

ClosedEntry entry(const std::string& name, EntrySpec spec) {
  ClosedEntry out;
  out.name = name;
  out.spec = std::make_shared<const EntrySpec>(std::move(spec));
  return out;
}

// One float32 tensor of this many elements.
ClosedEntry entry(const std::string& name, int64_t elements) {
  EntrySpec spec;
  spec.parts = {{name, {elements}}};
  return entry(name, spec);
}

template <class Change>
ClosedEntry entry(const std::string& name, int64_t elements, Change change) {
  EntrySpec spec;
  spec.parts = {{name, {elements}}};
  change(spec);
  return entry(name, spec);
}

std::vector<std::string> names(const std::vector<ClosedEntry>& batch) {
  std::vector<std::string> out;
  for (const ClosedEntry& closed : batch) out.push_back(closed.name);
  return out;
}

std::vector<std::vector<std::string>> drain(FusionPlanner& planner) {
  std::vector<std::vector<std::string>> out;
  while (!planner.empty()) out.push_back(names(planner.take_batch()));
  return out;
}

constexpr int64_t kMany = 1 << 20;

TEST(FusionPlanner, EqualEntriesFuseUpToTheLimit) {
  FusionPlanner planner(32, kMany);
  for (const char* name : {"a", "b", "c", "d", "e"}) planner.add(entry(name, 4));
  EXPECT_EQ(planner.ready_bytes(), 80);
  EXPECT_THAT(drain(planner),
              ElementsAre(ElementsAre("a", "b"), ElementsAre("c", "d"), ElementsAre("e")));
  EXPECT_EQ(planner.ready_bytes(), 0);
}

TEST(FusionPlanner, ADifferentEntryKeepsItsPlace) {
  FusionPlanner planner(kMany, kMany);
  planner.add(entry("a", 1));
  planner.add(entry("b", 1, [](EntrySpec& spec) { spec.dtype = DataType::Int32; }));
  planner.add(entry("c", 1));
  planner.add(entry("d", 1, [](EntrySpec& spec) { spec.dtype = DataType::Int32; }));
  EXPECT_THAT(drain(planner), ElementsAre(ElementsAre("a", "c"), ElementsAre("b", "d")));
}

TEST(FusionPlanner, WhatIsTooLargeForTheRestWaitsButSmallerOnesGoAhead) {
  FusionPlanner planner(40, kMany);
  planner.add(entry("a", 6));
  planner.add(entry("large", 8));
  planner.add(entry("small", 4));
  EXPECT_THAT(drain(planner), ElementsAre(ElementsAre("a", "small"), ElementsAre("large")));
}

TEST(FusionPlanner, LargerThanTheLimitRunsAlone) {
  FusionPlanner planner(8, kMany);
  planner.add(entry("large", 100));
  planner.add(entry("small", 1));
  EXPECT_THAT(drain(planner), ElementsAre(ElementsAre("large"), ElementsAre("small")));
}

TEST(FusionPlanner, FromAloneBytesOnNothingIsPacked) {
  FusionPlanner planner(kMany, 16);
  planner.add(entry("a", 3));
  planner.add(entry("alone", 4));
  planner.add(entry("b", 3));
  planner.add(entry("also alone", 5));
  EXPECT_THAT(drain(planner),
              ElementsAre(ElementsAre("a", "b"), ElementsAre("alone"), ElementsAre("also alone")));
}

TEST(FusionPlanner, EmptyEntriesFuseWithoutEnd) {
  FusionPlanner planner(1, 1);
  for (int i = 0; i < 1000; ++i) planner.add(entry("e", 0));
  EXPECT_EQ(planner.take_batch().size(), 1000U);
}

// The tensors of the entries may differ: they are packed one after the other. All other fields
// belong to the collective as a whole.
TEST(FusionPlanner, EveryFieldButTheTensorsMustBeEqual) {
  for (const test::SpecChange& change : test::spec_changes()) {
    FusionPlanner planner(kMany, kMany);
    planner.add(entry("a", test::spec_to_change()));
    planner.add(entry("equal", test::spec_to_change()));
    EntrySpec changed = test::spec_to_change();
    change.apply(changed);
    planner.add(entry("changed", changed));
    const std::vector<std::string> first = names(planner.take_batch());
    if (change.of_a_tensor) {
      EXPECT_THAT(first, ElementsAre("a", "equal", "changed")) << change.field;
    } else {
      EXPECT_THAT(first, ElementsAre("a", "equal")) << change.field;
    }
  }
}

// The ranks' specs of an entry are compared in the same way (agreement.cc).
TEST(FusionPlanner, ScalesAreComparedAsTheirTexts) {
  FusionPlanner planner(kMany, kMany);
  const auto scaled = [](const std::string& name, double scale) {
    return entry(name, 4, [scale](EntrySpec& spec) { spec.prescale = spec.postscale = scale; });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  planner.add(scaled("nan", nan));
  planner.add(scaled("zero", 0.0));
  planner.add(scaled("minus zero", -0.0));
  planner.add(scaled("nan again", -nan));
  planner.add(scaled("zero again", 0.0));
  EXPECT_THAT(drain(planner),
              ElementsAre(ElementsAre("nan", "nan again"), ElementsAre("zero", "zero again"),
                          ElementsAre("minus zero")));
}

TEST(FusionPlanner, OtherJoinedMembersAreAnotherCollective) {
  FusionPlanner planner(kMany, kMany);
  planner.add(entry("a", 1));
  ClosedEntry joined = entry("b", 1);
  joined.joined = {2};
  planner.add(joined);
  joined.name = "c";
  planner.add(joined);
  EXPECT_THAT(drain(planner), ElementsAre(ElementsAre("a"), ElementsAre("b", "c")));
}

TEST(FusionPlanner, AllgatherAndBarrierNeverFuse) {
  for (const CollectiveKind kind : {CollectiveKind::Allgather, CollectiveKind::Barrier}) {
    FusionPlanner planner(kMany, kMany);
    planner.add(entry("a", 1, [=](EntrySpec& spec) { spec.kind = kind; }));
    planner.add(entry("b", 1, [=](EntrySpec& spec) { spec.kind = kind; }));
    EXPECT_THAT(drain(planner), ElementsAre(ElementsAre("a"), ElementsAre("b")));
  }
}

TEST(FusionPlanner, BytesFollowTheDtypeAndAllParts) {
  FusionPlanner planner(kMany, kMany);
  planner.add(entry("a", 10, [](EntrySpec& spec) {
    spec.dtype = DataType::BFloat16;
    spec.parts.push_back({"scalar", {}});
    spec.parts.push_back({"matrix", {3, 4}});
  }));
  EXPECT_EQ(planner.ready_bytes(), 2 * (10 + 1 + 12));
}

// The rule itself: the first entry, and each one after it that is like it and still fits.
std::vector<std::string> next_by_the_rule(std::vector<ClosedEntry>& waiting, int64_t bytes_max,
                                          int64_t alone_bytes) {
  const auto fuses = [&](const ClosedEntry& one) {
    return may_fuse(*one.spec, byte_count(*one.spec), alone_bytes);
  };
  const ClosedEntry first = waiting.front();
  std::vector<std::string> batch;
  int64_t bytes = 0;
  std::erase_if(waiting, [&](const ClosedEntry& one) {
    const bool fits = fuses(first) && fuses(one) && bytes + byte_count(*one.spec) <= bytes_max &&
                      same_collective(*first.spec, *one.spec) && first.joined == one.joined;
    if (!batch.empty() && !fits) return false;
    bytes += byte_count(*one.spec);
    batch.push_back(one.name);
    return true;
  });
  return batch;
}

TEST(FusionPlanner, EveryBatchFollowsTheRule) {
  std::mt19937 random(1);
  const auto below = [&](uint32_t end) { return static_cast<int>(random() % end); };
  for (int round = 0; round < 200; ++round) {
    const int64_t bytes_max = below(400);
    const int64_t alone_bytes = 1 + below(200);
    FusionPlanner planner(bytes_max, alone_bytes);
    std::vector<ClosedEntry> waiting;
    for (int step = 0; step < 60; ++step) {
      for (int added = below(4); added > 0; --added) {
        ClosedEntry one = entry(std::to_string(step * 4 + added), below(60), [&](EntrySpec& spec) {
          spec.kind = static_cast<CollectiveKind>(below(3));
          spec.root = below(2);
          if (below(2) == 0) spec.dtype = DataType::BFloat16;
          if (below(3) == 0) spec.postscale = std::numeric_limits<double>::quiet_NaN();
          if (below(4) == 0) spec.compression = Compression::Int8;
        });
        if (below(4) == 0) one.joined = {below(2)};
        planner.add(one);
        waiting.push_back(one);
      }
      ASSERT_EQ(planner.empty(), waiting.empty());
      if (waiting.empty() || below(2) == 0) continue;
      const std::vector<std::string> expected = next_by_the_rule(waiting, bytes_max, alone_bytes);
      ASSERT_EQ(names(planner.take_batch()), expected);
    }
  }
}

double cpu_time_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Of this thread, which others may delay; the least of several, since they share its caches.
double cpu_time_to_drain_s(int unlike_entries) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    FusionPlanner planner(kMany, kMany);
    for (int j = 0; j < unlike_entries; ++j) {
      planner.add(entry("e", 1, [j](EntrySpec& spec) { spec.prescale = j + 1; }));
    }
    const double begin = cpu_time_s();
    EXPECT_EQ(drain(planner).size(), static_cast<size_t>(unlike_entries));
    least = std::min(least, cpu_time_s() - begin);
  }
  return least;
}

// The loop thread plans while the other ranks wait. With time quadratic in the number of entries,
// eight times as many would take 64 times as long.
TEST(FusionPlanner, TheTimeForUnlikeEntriesGrowsAsTheirNumber) {
  EXPECT_LT(cpu_time_to_drain_s(40'000), 24 * cpu_time_to_drain_s(5'000));
}

// A factor that changes in each step makes a new kind of batch each time.
TEST(FusionPlanner, KeepsNothingOfWhatHasBeenTaken) {
  FusionPlanner planner(kMany, kMany);
  const ClosedEntry one = entry("a", 4);
  planner.add(one);
  planner.add(one);
  EXPECT_EQ(planner.take_batch().size(), 2U);
  EXPECT_EQ(one.spec.use_count(), 1);
}

}  // namespace
}  // namespace horon::core
