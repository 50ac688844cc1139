// Tests that the checks of the simulation can fail. Each test breaks the coordinator's messages, or
// a rank's, in one way, and expects that every job in which this took place is found to be wrong.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/support/simulation/random_job.h"
#include "horon/tests/support/simulation/random_world.h"

namespace horon::simulation {
namespace {

using core::Envelope;
using core::Item;

// Changes one thing in the items from `from` to `to`; false if there is nothing to change.
using Break = std::function<bool(int from, int to, std::vector<Item>& items)>;

struct Count {
  int broken = 0;
  std::vector<uint64_t> missed;  // seeds of broken jobs that passed
};

// Breaks healthy jobs of the seeds from 1 on once each, until it has broken `enough`. A job whose
// messages offer nothing to break, or for which `counts` is false, is left out.
using Counts = std::function<bool(const World&)>;
Count count_broken(const Break& break_it, int enough, const Counts& counts) {
  Count count;
  for (uint64_t seed = 1; seed <= 1600 && count.broken < enough; ++seed) {
    World world = random_world(seed);
    if (!world.timing.faults.empty() || world.corrupted || world.programs.size() < 2) continue;
    if (counts && !counts(world)) continue;
    auto done = std::make_shared<bool>(false);
    world.cluster.tamper = [=](int from, int to, Envelope& envelope) {
      if (!*done) *done = break_it(from, to, envelope.items);
    };
    const Report report = run_world(world);
    if (!*done) continue;
    ++count.broken;
    if (report.wrong.empty()) count.missed.push_back(seed);
  }
  return count;
}

// Expects that every broken job is found, and that there are at least `broken_min` of them.
void expect_found(const Break& break_it, int broken_min = 20, const Counts& counts = {}) {
  const Count count = count_broken(break_it, 2 * broken_min, counts);
  EXPECT_GE(count.broken, broken_min);
  EXPECT_THAT(count.missed, testing::IsEmpty());
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

// The messages go through tampering, but nothing is changed: so what the other tests find is their
// break.
TEST(SimulationChecks, HealthyJobsPass) {
  const Count count = count_broken([](int, int, std::vector<Item>&) { return true; }, 600, {});
  EXPECT_GE(count.broken, 500);
  EXPECT_EQ(count.missed.size(), static_cast<size_t>(count.broken));
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

bool nobody_calls(Action::Kind kind, const World& world) {
  for (const Program& program : world.programs) {
    for (const Action& action : program) {
      if (action.kind == kind) return false;
    }
  }
  return true;
}

// If a rank calls shutdown() after join(), it is away with or without the Join, and if another rank
// stays for ever, no call can tell the difference. So only jobs that no rank leaves count. If
// something is frozen, the Join may be one that is dropped and said again.
TEST(SimulationChecks, LostJoin) {
  expect_found(drop_first<core::Join>(), 5, [](const World& world) {
    return !world.cluster.gate && nobody_calls(Action::Kind::Shutdown, world);
  });
}

// If a rank has joined or left, its Refused is not missed if the same entry fails because of
// another rank. So only jobs that no rank joins or leaves count.
TEST(SimulationChecks, LostRefused) {
  expect_found(drop_first<core::Refused>(), 5, [](const World& world) {
    return nobody_calls(Action::Kind::Join, world) && nobody_calls(Action::Kind::Shutdown, world);
  });
}

TEST(SimulationChecks, DoublePlan) { expect_found(double_first<core::Plan>()); }
TEST(SimulationChecks, DoubleFail) { expect_found(double_first<core::Fail>()); }
TEST(SimulationChecks, DoubleReady) { expect_found(double_first<core::Ready>()); }
TEST(SimulationChecks, DoubleBye) { expect_found(double_first<core::Bye>()); }

TEST(SimulationChecks, AnotherErrorOnOneRank) {
  expect_found(on_first<core::Fail>([](core::Fail& fail) {
    fail.text += " or so";
    return true;
  }));
}

TEST(SimulationChecks, ErrorForAnotherTensor) {
  expect_found(on_first<core::Fail>([](core::Fail& fail) {
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
  expect_found(on_first<core::Joined>([](core::Joined& joined) {
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

bool any_run(const Report&) { return true; }

// Breaks every message in the same way, and not only one: then all ranks may agree on the wrong
// result. `counts`: whether the change breaks this run.
Count count_broken_everywhere(const std::function<bool(Item& item)>& change,
                              const std::function<bool(const Report& report)>& counts = any_run) {
  Count count;
  for (uint64_t seed = 1; seed <= 1600 && count.broken < 20; ++seed) {
    World world = random_world(seed);
    if (!world.timing.faults.empty() || world.corrupted || world.programs.size() < 2) continue;
    auto done = std::make_shared<bool>(false);
    world.cluster.tamper = [=](int, int, Envelope& envelope) {
      for (Item& item : envelope.items) *done = change(item) || *done;
    };
    const Report report = run_world(world);
    if (!*done || !counts(report)) continue;
    ++count.broken;
    if (report.wrong.empty()) count.missed.push_back(seed);
  }
  return count;
}

void expect_found_everywhere(const std::function<bool(Item& item)>& change,
                             const std::function<bool(const Report& report)>& counts = any_run) {
  const Count count = count_broken_everywhere(change, counts);
  EXPECT_GE(count.broken, 10);
  EXPECT_THAT(count.missed, testing::IsEmpty());
}

// The spec of the collective as a whole, if this batch contains it.
std::optional<core::EntrySpec> collective_of(const core::PlannedBatch& batch) {
  if (batch.entries.front().spec == nullptr) return std::nullopt;
  core::EntrySpec collective = *batch.entries.front().spec;
  collective.parts.clear();
  return collective;
}

// Two batches become one, on all ranks, although they are different collectives.
TEST(SimulationChecks, OneBatchOfTwoCollectives) {
  expect_found_everywhere([](Item& item) {
    auto* plan = std::get_if<core::Plan>(&item);
    if (plan == nullptr || plan->batches.size() < 2) return false;
    core::PlannedBatch& first = plan->batches[0];
    core::PlannedBatch& second = plan->batches[1];
    const auto one = collective_of(first);
    const auto other = collective_of(second);
    if (!one || !other || *one == *other || first.joined != second.joined) return false;
    first.entries.insert(first.entries.end(), second.entries.begin(), second.entries.end());
    plan->batches.erase(plan->batches.begin() + 1);
    return true;
  });
}

// Only runs count in which an entry is missing for a long time: a rank that is only late is
// reported too, but comes.
TEST(SimulationChecks, NoStallReport) {
  expect_found_everywhere(
      [](Item& item) {
        auto* stall = std::get_if<core::Stall>(&item);
        if (stall != nullptr) stall->text.clear();
        return stall != nullptr;
      },
      [](const Report& report) {
        return report.seen.contains("stall report") && report.seen.at("stall report") > 0;
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

// If no rank calls shutdown(), a set that should end because of another one goes on for ever if it
// is not told.
TEST(SimulationChecks, AnErrorStaysInItsSet) {
  int broken = 0;
  for (uint64_t seed = 1; broken < 20 && seed <= 1600; ++seed) {
    Job job = random_job(seed);
    const bool counts = std::all_of(job.sets.begin(), job.sets.end(), [](const World& set) {
      return nobody_calls(Action::Kind::Shutdown, set);
    });
    if (!counts || run_job(job).seen["ended by another set"] == 0) continue;
    job.errors_spread = false;
    ++broken;
    EXPECT_FALSE(run_job(job).wrong.empty()) << "seed " << seed;
  }
  EXPECT_GE(broken, 20);
}

TEST(SimulationChecks, LostPlanInOneOfTheSets) {
  int broken = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Job job = random_job(seed);
    if (!job.faults.empty()) continue;
    auto done = std::make_shared<bool>(false);
    job.sets.back().cluster.tamper = [done](int from, int to, Envelope& envelope) {
      if (!*done) *done = drop_first<core::Plan>()(from, to, envelope.items);
    };
    const Report report = run_job(job);
    if (!*done) continue;
    ++broken;
    EXPECT_FALSE(report.wrong.empty()) << "seed " << seed;
  }
  EXPECT_GE(broken, 20);
}

}  // namespace
}  // namespace horon::simulation
