// Thousands of random jobs under seeds. A failing seed prints its programs and its trace; run it
// again with --first-seed=S --seeds=1. The long mode is --seeds=N.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/support/simulation/random_world.h"

namespace horon::simulation {
namespace {

struct Range {
  uint64_t first = 1;
  uint64_t count = 20000;
};
Range seeds;

TEST(Simulation, RandomWorlds) {
  int failed = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count && failed < 3; ++seed) {
    if (run_world(seed).empty()) continue;
    ++failed;
    std::string trace;
    for (const std::string& wrong : run_world(seed, &trace)) {
      ADD_FAILURE() << "seed " << seed << ": " << wrong;
    }
    ADD_FAILURE() << "the job of seed " << seed << " was:\n" << trace;
  }
}

TEST(Simulation, SameSeedSameRun) {
  for (const uint64_t seed : {7, 8, 9}) {
    std::string first;
    std::string second;
    run_world(seed, &first);
    run_world(seed, &second);
    EXPECT_EQ(first, second);
    EXPECT_FALSE(first.empty());
  }
}

// Seeds that once showed a fault.
TEST(Simulation, OldFaults) {
  for (const uint64_t seed : std::vector<uint64_t>{}) {
    EXPECT_TRUE(run_world(seed).empty()) << "seed " << seed;
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
    std::fprintf(stderr, "unknown flag %s\n", argv[i]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
