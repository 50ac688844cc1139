// Collectives of several sets enter the devices of all ranks in one order.
#include "horon/ops/nccl/launch_order.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/execution/event.h"
#include "horon/core/execution/memory_queue.h"

namespace horon::ops {
namespace {

TEST(LaunchOrder, ASetThatMayStillGetASmallerNumberIsWaitedFor) {
  LaunchOrder order;
  EXPECT_EQ(order.propose({7}), 1);
  EXPECT_EQ(order.propose({8}), 2);
  order.settle({8}, 2);
  EXPECT_FALSE(order.may_enter({8}));  // set 7 may settle at 1
  order.settle({7}, 5);
  EXPECT_TRUE(order.may_enter({8}));
  EXPECT_FALSE(order.may_enter({7}));
  order.entered({8});
  EXPECT_TRUE(order.may_enter({7}));
  order.entered({7});
  EXPECT_EQ(order.propose({8}), 6);
}

class CountedWaits final : public core::MemoryQueue {
 public:
  bool immediate() const override { return false; }
  bool wait_for(core::Event&) override {
    ++waits;
    return true;
  }
  void copy(std::span<const core::CopyItem>) override {}
  std::shared_ptr<core::Event> record() override {
    struct Happened final : core::Event {
      bool happened() override { return true; }
      void wait() override {}
    };
    return std::make_shared<Happened>();
  }
  int waits = 0;
};

TEST(LaunchOrder, AStreamWaitsForTheLastCollectiveOfAnotherLine) {
  LaunchOrder order;
  CountedWaits world;
  CountedWaits set;
  order.wait_in(world, {0});
  EXPECT_EQ(world.waits, 0) << "none has entered";
  order.becomes_last(world, {0});
  order.wait_in(world, {0});
  EXPECT_EQ(world.waits, 0) << "a stream keeps its own order";
  order.wait_in(set, {8});
  EXPECT_EQ(set.waits, 1);
  order.becomes_last(set, {8});
  order.wait_in(world, {0});
  EXPECT_EQ(world.waits, 1);
  order.wait_in(world, {0, LaunchLine::Of::GatherOnHost});
  EXPECT_EQ(world.waits, 2);
}

// A world of sets that overlap. Each rank proposes for its sets whenever it likes, messages arrive
// whenever they like.
struct Sets {
  struct Set {
    std::vector<int> members;
    std::map<int, int64_t> proposals;  // of its collective in flight, by rank
    std::vector<int> settled, entered;
    int left = 8;  // collectives
  };
  std::vector<Set> sets;
  std::vector<LaunchOrder> ranks;
  std::map<int, std::vector<std::pair<int, int>>>
      entries;  // by rank: set, which of its collectives

  static bool has(const std::vector<int>& list, int value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  }
  // False: this rank can do nothing for this set now.
  bool move(size_t index, int rank) {
    Set& set = sets[index];
    LaunchOrder& order = ranks[static_cast<size_t>(rank)];
    const LaunchLine id{static_cast<uint32_t>(index)};
    if (set.left == 0 || !has(set.members, rank) || has(set.entered, rank)) return false;
    if (!set.proposals.contains(rank)) {
      set.proposals[rank] = order.propose(id);
      return true;
    }
    if (set.proposals.size() < set.members.size()) return false;
    if (!has(set.settled, rank)) {
      int64_t largest = 0;
      for (const auto& [from, number] : set.proposals) largest = std::max(largest, number);
      order.settle(id, largest);
      set.settled.push_back(rank);
      return true;
    }
    if (!order.may_enter(id)) return false;
    order.entered(id);
    entries[rank].emplace_back(static_cast<int>(index), set.left);
    set.entered.push_back(rank);
    if (set.entered.size() == set.members.size()) {
      set.proposals.clear();
      set.settled.clear();
      set.entered.clear();
      --set.left;
    }
    return true;
  }
};

TEST(LaunchOrder, AllRanksAgreeWhateverTheOrderOfEvents) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    Sets world;
    world.ranks.resize(4);
    for (const auto& members :
         std::vector<std::vector<int>>{{0, 1, 2, 3}, {0, 1}, {1, 2}, {0, 2}, {1, 2, 3}, {0, 3}}) {
      world.sets.push_back({members, {}, {}, {}});
    }
    int idle = 0;
    while (idle < 2000) {
      const bool moved = world.move(random() % world.sets.size(), static_cast<int>(random() % 4));
      idle = moved ? 0 : idle + 1;
    }
    for (const Sets::Set& set : world.sets) ASSERT_EQ(set.left, 0) << "seed " << seed;
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < a; ++b) {
        const auto shared = [&](int of, int with) {
          std::vector<std::pair<int, int>> list;
          for (const auto& entry : world.entries[of]) {
            const auto& members = world.sets[static_cast<size_t>(entry.first)].members;
            if (Sets::has(members, with)) list.push_back(entry);
          }
          return list;
        };
        ASSERT_EQ(shared(a, b), shared(b, a)) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace horon::ops
