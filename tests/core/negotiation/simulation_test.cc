// Thousands of random jobs under seeds. A failing seed prints its programs and its trace; run it
// again with --first-seed=S --seeds=1. The long mode is --seeds=N.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/support/simulation/random_job.h"
#include "horon/tests/support/simulation/random_world.h"

namespace horon::simulation {
namespace {

struct Range {
  uint64_t first = 1;
  uint64_t count = HORON_SIMULATION_SEEDS;  // fewer under sanitizers
};
Range seeds;
constexpr uint64_t kWorldsPerJob = 5;

// Counts how often each thing was seen in the jobs of the first seeds. RandomWorlds and RandomJobs
// run these jobs anyway; all() runs those that they have not run.
class Sightings {
 public:
  Sightings(uint64_t count, std::function<Report(uint64_t)> run) : run_(std::move(run)) {
    for (uint64_t seed = 1; seed <= count; ++seed) unseen_.insert(seed);
  }
  void note(uint64_t seed, const Report& report) {
    if (unseen_.erase(seed) == 0) return;
    for (const auto& [what, times] : report.seen) seen_[what] += times;
  }
  std::map<std::string, int>& all() {
    while (!unseen_.empty()) {
      const uint64_t seed = *unseen_.begin();
      note(seed, run_(seed));
    }
    return seen_;
  }

 private:
  const std::function<Report(uint64_t)> run_;
  std::set<uint64_t> unseen_;
  std::map<std::string, int> seen_;
};
Sightings worlds(2400, [](uint64_t seed) { return run_world(random_world(seed)); });
Sightings jobs(1000, [](uint64_t seed) { return run_job(random_job(seed)); });

Report traced(uint64_t seed) {
  World world = random_world(seed);
  world.cluster.trace = true;
  return run_world(world);
}

TEST(Simulation, RandomWorlds) {
  int failed = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count && failed < 3; ++seed) {
    const Report first = run_world(random_world(seed));
    worlds.note(seed, first);
    if (first.wrong.empty()) continue;
    ++failed;
    const Report report = traced(seed);
    for (const std::string& wrong : report.wrong) ADD_FAILURE() << "seed " << seed << ": " << wrong;
    ADD_FAILURE() << "the job of seed " << seed << " was:\n" << report.trace;
  }
}

Report traced_job(uint64_t seed) {
  Job job = random_job(seed);
  job.trace = true;
  return run_job(job);
}

// With the same seeds, but fewer of them.
TEST(Simulation, RandomJobs) {
  int failed = 0;
  const uint64_t count = seeds.count / kWorldsPerJob + 1;
  for (uint64_t seed = seeds.first; seed < seeds.first + count && failed < 3; ++seed) {
    const Report first = run_job(random_job(seed));
    jobs.note(seed, first);
    if (first.wrong.empty()) continue;
    ++failed;
    const Report report = traced_job(seed);
    for (const std::string& wrong : report.wrong) ADD_FAILURE() << "job " << seed << ": " << wrong;
    ADD_FAILURE() << "the job of seed " << seed << " was:\n" << report.trace;
  }
}

TEST(Simulation, SameSeedSameRun) {
  for (const uint64_t seed : {7, 8, 9}) {
    const std::string first = traced(seed).trace;
    EXPECT_EQ(first, traced(seed).trace);
    EXPECT_FALSE(first.empty());
    EXPECT_EQ(traced_job(seed).trace, traced_job(seed).trace);
  }
}

// A world that never shows something proves nothing about it.
TEST(Simulation, EverythingOccurs) {
  std::map<std::string, int>& seen = worlds.all();
  for (const char* what : {"ran",
                           "unused",
                           "joined,",
                           "pending",
                           "bye",
                           "stall report",
                           "batch",
                           "failed (mismatch",
                           "failed (rank left",
                           "failed (invalid argument",
                           "failed (duplicate name",
                           "failed (not initialized",
                           "failed (peer dead",
                           "failed (failed",
                           "died while sending",
                           "late fault",
                           "two faults",
                           "process set",
                           "freeze",
                           "thaw",
                           "frozen start",
                           "eager start",
                           "void start",
                           "place given up",
                           "freeze of rows",
                           "frozen start fused with another",
                           "frozen start between hosts"}) {
    EXPECT_GE(seen[what], 50) << what;
  }
  EXPECT_GE(seen["fault while the last batches run"], 20);
}

TEST(Simulation, EverythingOccursInJobs) {
  std::map<std::string, int>& seen = jobs.all();
  for (const char* what : {"ran", "joined,", "pending", "bye", "stall report", "frozen start",
                           "failed (peer dead", "failed (failed", "ended by another set",
                           "nobody needed the culprit", "no part in the fault"}) {
    EXPECT_GE(seen[what], 20) << what;
  }
}

}  // namespace
}  // namespace horon::simulation

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const auto value = [&](std::string_view name, uint64_t& to) {
      if (flag.substr(0, name.size()) != name) return false;
      to = std::strtoull(argv[i] + name.size(), nullptr, 10);
      return true;
    };
    if (value("--seeds=", horon::simulation::seeds.count)) continue;
    if (value("--first-seed=", horon::simulation::seeds.first)) continue;
    std::fprintf(stderr, "unknown flag %s; known: --seeds=N --first-seed=S\n", argv[i]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
