// Can the checks of the simulation fail? Each test breaks the coordinator's messages, or a rank's,
// in one way and expects that every job in which the break took place is found to be wrong.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/support/simulation/random_world.h"

namespace horon::simulation {
namespace {

using core::Envelope;
using core::Item;

// Changes one thing in the items from `from` to `to`; false if there is nothing to change.
using Break = std::function<bool(int from, int to, std::vector<Item>& items)>;

struct Count {
  int broken = 0;
  int found = 0;
};

// Breaks each of many healthy jobs once.
Count count_found(const Break& break_it) {
  Count count;
  for (uint64_t seed = 1; seed <= 1200; ++seed) {
    World world = random_world(seed);
    if (world.timing.fault || world.corrupted || world.programs.size() < 2) continue;
    auto done = std::make_shared<bool>(false);
    world.cluster.tamper = [=](int from, int to, Envelope& envelope) {
      if (!*done) *done = break_it(from, to, envelope.items);
    };
    const Report report = run_world(world);
    if (!*done) continue;
    ++count.broken;
    if (!report.wrong.empty()) ++count.found;
  }
  return count;
}

void expect_found(const Break& break_it, int broken_min = 20) {
  const Count count = count_found(break_it);
  EXPECT_GE(count.broken, broken_min);
  EXPECT_EQ(count.broken, count.found);
}

// Where the break may do no harm: an error for a rank that does not have the tensor, a word in an
// entry that stays open for want of others.
void expect_mostly_found(const Break& break_it) {
  const Count count = count_found(break_it);
  EXPECT_GE(count.broken, 20);
  EXPECT_GE(count.found * 10, count.broken * 6) << count.found << " of " << count.broken;
}

// Applies `change` to the first item of this type.
template <class T>
Break on_first(std::function<bool(T&)> change) {
  return [change](int, int, std::vector<Item>& items) {
    for (Item& item : items) {
      T* wanted = std::get_if<T>(&item);
      if (wanted != nullptr && change(*wanted)) return true;
    }
    return false;
  };
}

template <class T>
Break drop_first() {
  return [](int, int, std::vector<Item>& items) {
    const auto place = std::find_if(items.begin(), items.end(), [](const Item& item) {
      return std::holds_alternative<T>(item);
    });
    // An empty message is allowed on its way; something must be left to send.
    if (place == items.end() || items.size() < 2) return false;
    items.erase(place);
    return true;
  };
}

template <class T>
Break double_first() {
  return [](int, int, std::vector<Item>& items) {
    const auto place = std::find_if(items.begin(), items.end(), [](const Item& item) {
      return std::holds_alternative<T>(item);
    });
    if (place == items.end()) return false;
    const Item copy = *place;
    items.insert(place, copy);
    return true;
  };
}

TEST(SimulationChecks, HealthyJobsPass) {
  const Count count = count_found([](int, int, std::vector<Item>&) { return false; });
  EXPECT_EQ(count.broken, 0);
}

TEST(SimulationChecks, BatchesInAnotherOrder) {
  expect_found(on_first<core::Plan>([](core::Plan& plan) {
    if (plan.batches.size() < 2) return false;
    std::swap(plan.batches.front(), plan.batches.back());
    return true;
  }));
}

TEST(SimulationChecks, EntriesInAnotherOrder) {
  expect_found(on_first<core::Plan>([](core::Plan& plan) {
    for (core::PlannedBatch& batch : plan.batches) {
      if (batch.entries.size() < 2) continue;
      std::swap(batch.entries.front(), batch.entries.back());
      return true;
    }
    return false;
  }));
}

TEST(SimulationChecks, EntryMovesToAnotherBatch) {
  expect_found(on_first<core::Plan>([](core::Plan& plan) {
    for (core::PlannedBatch& batch : plan.batches) {
      if (batch.entries.size() < 2) continue;
      core::PlannedBatch rest = batch;
      rest.entries.erase(rest.entries.begin());
      batch.entries.resize(1);
      plan.batches.push_back(rest);
      return true;
    }
    return false;
  }));
}

TEST(SimulationChecks, LostPlan) { expect_found(drop_first<core::Plan>()); }
TEST(SimulationChecks, LostFail) { expect_found(drop_first<core::Fail>()); }
TEST(SimulationChecks, LostUnused) { expect_found(drop_first<core::Unused>(), 5); }
TEST(SimulationChecks, LostJoined) { expect_found(drop_first<core::Joined>(), 5); }
TEST(SimulationChecks, LostReady) { expect_mostly_found(drop_first<core::Ready>()); }
TEST(SimulationChecks, LostRefused) { expect_mostly_found(drop_first<core::Refused>()); }
TEST(SimulationChecks, LostJoin) { expect_mostly_found(drop_first<core::Join>()); }
TEST(SimulationChecks, DoublePlan) { expect_found(double_first<core::Plan>()); }
TEST(SimulationChecks, DoubleFail) { expect_found(double_first<core::Fail>()); }
TEST(SimulationChecks, DoubleReady) { expect_found(double_first<core::Ready>()); }
TEST(SimulationChecks, DoubleBye) { expect_found(double_first<core::Bye>()); }

TEST(SimulationChecks, AnotherErrorOnOneRank) {
  expect_mostly_found(on_first<core::Fail>([](core::Fail& fail) {
    fail.text += " or so";
    return true;
  }));
}

TEST(SimulationChecks, ErrorForAnotherTensor) {
  expect_mostly_found(on_first<core::Fail>([](core::Fail& fail) {
    fail.name += "'";
    return true;
  }));
}

TEST(SimulationChecks, AnotherPartWasProduced) {
  expect_found(on_first<core::Plan>([](core::Plan& plan) {
    std::vector<bool>& produced = plan.batches.front().entries.front().produced;
    if (produced.empty()) return false;
    produced.flip();
    return true;
  }));
}

TEST(SimulationChecks, OtherRows) {
  expect_found(on_first<core::Plan>([](core::Plan& plan) {
    std::vector<int64_t>& rows = plan.batches.front().entries.front().extents;
    if (rows.empty()) return false;
    ++rows.back();
    return true;
  }));
}

TEST(SimulationChecks, AnotherRankHasJoined) {
  expect_found(on_first<core::Plan>([](core::Plan& plan) {
    std::vector<int>& joined = plan.batches.front().joined;
    if (joined.empty()) return false;
    joined.pop_back();
    return true;
  }));
}

TEST(SimulationChecks, AnotherRankCameLast) {
  expect_mostly_found(on_first<core::Joined>([](core::Joined& joined) {
    joined.last = joined.last == 0 ? 1 : 0;
    return true;
  }));
}

TEST(SimulationChecks, EarlyBye) {
  expect_found([](int from, int, std::vector<Item>& items) {
    if (from != 0 || std::holds_alternative<core::Bye>(items.back())) return false;
    items.emplace_back(core::Bye{});
    return true;
  });
}

TEST(SimulationChecks, EarlyJoined) {
  expect_found([](int from, int, std::vector<Item>& items) {
    if (from != 0) return false;
    items.insert(items.begin(), core::Joined{1});
    return true;
  });
}

// Not one message, but every message alike: then all ranks may agree on what is wrong.
void expect_found_everywhere(const std::function<bool(Item& item)>& change) {
  int found = 0;
  int broken = 0;
  for (uint64_t seed = 1; seed <= 1200; ++seed) {
    World world = random_world(seed);
    if (world.timing.fault || world.corrupted || world.programs.size() < 2) continue;
    auto done = std::make_shared<bool>(false);
    world.cluster.tamper = [=](int, int, Envelope& envelope) {
      for (Item& item : envelope.items) *done = change(item) || *done;
    };
    const Report report = run_world(world);
    if (!*done) continue;
    ++broken;
    if (!report.wrong.empty()) ++found;
  }
  EXPECT_GE(broken, 10);
  EXPECT_EQ(broken, found);
}

TEST(SimulationChecks, NoStallReport) {
  expect_found_everywhere([](Item& item) {
    auto* stall = std::get_if<core::Stall>(&item);
    if (stall != nullptr) stall->text.clear();
    return stall != nullptr;
  });
}

TEST(SimulationChecks, MismatchPassesForUnused) {
  expect_found_everywhere([](Item& item) {
    const auto* fail = std::get_if<core::Fail>(&item);
    if (fail == nullptr || fail->code != ErrorCode::Mismatch) return false;
    item = core::Unused{std::string(fail->name)};
    return true;
  });
}

}  // namespace
}  // namespace horon::simulation
