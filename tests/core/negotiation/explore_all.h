// For tests that visit every order of events in a small world.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/support/simulation/exploration.h"

namespace horon::simulation {

inline core::SpecPtr tensor(const std::string& name, std::vector<int64_t> shape = {4}) {
  core::EntrySpec spec;
  spec.parts.push_back({name, std::move(shape)});
  return std::make_shared<core::EntrySpec>(spec);
}

inline Action give(const std::string& name) { return submit(name, tensor(name)); }

inline constexpr size_t kStatesMax = 400'000;

inline void expect_well(const ExplorationReport& report, const std::vector<Program>& programs) {
  std::string wrong;
  for (const std::string& line : report.wrong) wrong += line + "\n";
  EXPECT_TRUE(report.wrong.empty()) << describe(programs) << wrong;
  EXPECT_TRUE(report.complete) << "only " << report.states << " states were visited";
  EXPECT_GT(report.ends, 0U);
  ::testing::Test::RecordProperty("states", std::to_string(report.states));
}

inline void explore_all(const std::vector<Program>& programs,
                        SimulatedCluster::Options options = {}) {
  expect_well(explore(options, programs, kStatesMax), programs);
}

}  // namespace horon::simulation
