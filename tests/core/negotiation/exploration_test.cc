// Small worlds in every order of events, and one world of many ranks.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/text.h"
#include "horon/tests/core/negotiation/explore_all.h"
#include "horon/tests/support/simulation/check_outcomes.h"
#include "horon/tests/support/simulation/timed_run.h"

namespace horon::simulation {
namespace {

TEST(Exploration, TwoRanksTwoTensorsTwice) {
  const Program a = {give("x"), give("y"), wait_all(), give("x"), give("y"), wait_all()};
  const Program b = {give("y"), give("x"), wait_all(), give("y"), give("x"), wait_all()};
  explore_all({a, b});
}

TEST(Exploration, ThreeRanksTwoTensors) {
  explore_all({{give("x"), give("y"), wait_all()},
               {give("y"), give("x"), wait_all()},
               {give("x"), wait_all(), give("y"), wait_all()}});
}

TEST(Exploration, OneBatchInFlight) {
  SimulatedCluster::Options options;
  options.controller.batches_in_flight_max = 1;
  const Program a = {give("x"), give("y"), give("z"), wait_all()};
  explore_all({a, a}, options);
}

TEST(Exploration, Mismatch) {
  explore_all({{give("x"), give("y"), wait_all(), give("x"), wait_all()},
               {submit("x", tensor("x", {5})), give("y"), wait_all(), give("x"), wait_all()}});
}

TEST(Exploration, AnotherShapeOnAllRanks) {
  const Program a = {give("x"),  wait_all(), submit("x", tensor("x", {5})),
                     wait_all(), give("x"),  wait_all()};
  explore_all({a, a});
}

TEST(Exploration, AbsentAndUnused) {
  const Action nothing = submit("x", tensor("x"), {true});
  explore_all({{nothing, give("y"), wait_all(), nothing, wait_all()},
               {give("y"), nothing, wait_all(), give("x"), wait_all()}});
}

TEST(Exploration, RefusedAndHeld) {
  explore_all({{give("x"), wait_all(), give("x"), wait_all(), shutdown()},
               {refuse("x"), give("x"), shutdown(), wait_all()}});
  explore_all({{give("x"), wait_all(), give("x"), wait_all(), join(), wait_all()},
               {refuse("x"), refuse("x"), join(), wait_all()}});
}

TEST(Exploration, Join) {
  explore_all({{give("x"), wait_all(), give("y"), wait_all(), join(), wait_all(), shutdown()},
               {give("x"), wait_all(), join(), wait_all(), shutdown()}});
  explore_all({{give("x"), join(), wait_all(), give("x"), wait_all()},
               {join(), wait_all(), give("x"), wait_all()}});
}

TEST(Exploration, JoinOfThree) {
  explore_all({{give("x"), join(), wait_all()},
               {join(), wait_all()},
               {join(), wait_all(), shutdown(), wait_all()}});
}

TEST(Exploration, JoinAndLeaveAtOnce) {
  explore_all({{give("x"), wait_all(), shutdown(), wait_all()}, {join(), shutdown(), wait_all()}});
}

TEST(Exploration, LeavingEarly) {
  explore_all({{give("x"), wait_all(), give("y"), wait_all(), shutdown()},
               {give("x"), shutdown(), wait_all()}});
  explore_all(
      {{give("x"), give("y"), shutdown()}, {shutdown()}, {give("x"), wait_all(), shutdown()}});
}

TEST(Exploration, NeverSubmitted) {
  explore_all({{give("x"), give("y"), wait_all()}, {give("y"), wait_all()}});
}

// With a gate: every order of the ranks' fills, of the starts that they owe, and of the records.
SimulatedCluster::Options gate(int freeze_after = 1) {
  SimulatedCluster::Options options;
  options.gate = true;
  options.controller.freeze_after = freeze_after;
  options.controller.alone_bytes = 0;
  return options;
}

Action give_five(const std::string& name) { return submit(name, tensor(name, {5})); }

TEST(ExplorationOfTheGate, OneNameAgainAndAgain) {
  const Program two = {give("x"), wait_all(), give("x"), wait_all(), give("x"), wait_all()};
  explore_all({two, two}, gate());
  const Program three = {give("x"), wait_all(), give("x"), wait_all(), give("x"), wait_all()};
  explore_all({three, three, three}, gate(2));
}

TEST(ExplorationOfTheGate, TwoNamesInDifferentOrders) {
  explore_all({{give("x"), give("y"), wait_all(), give("x"), give("y"), wait_all()},
               {give("y"), give("x"), wait_all(), give("y"), give("x"), wait_all()}},
              gate());
}

TEST(ExplorationOfTheGate, AnotherNameBeside) {
  const Program a = {give("x"),  wait_all(), give("x"), give("y"),
                     wait_all(), give("x"),  wait_all()};
  explore_all({a, {give("x"), wait_all(), give("y"), give("x"), wait_all(), give("x"), wait_all()}},
              gate(2));
}

TEST(ExplorationOfTheGate, OneRankChangesTheShape) {
  explore_all({{give("x"), wait_all(), give("x"), wait_all(), give("x"), wait_all()},
               {give("x"), wait_all(), give_five("x"), wait_all(), give("x"), wait_all()}},
              gate());
  explore_all(
      {{give("x"), wait_all(), give("y"), wait_all(), give("x"), give("y"), wait_all()},
       {give("x"), wait_all(), give("y"), wait_all(), give("x"), give_five("y"), wait_all()}},
      gate());
}

TEST(ExplorationOfTheGate, AllRanksChangeTheShape) {
  const Program a = {give("x"), wait_all(), give_five("x"), wait_all(), give("x"), wait_all()};
  explore_all({a, a}, gate());
}

TEST(ExplorationOfTheGate, AbsentParts) {
  const Action nothing = submit("x", tensor("x"), {true});
  explore_all({{give("x"), wait_all(), give("x"), wait_all(), nothing, wait_all()},
               {give("x"), wait_all(), nothing, wait_all(), nothing, wait_all()}},
              gate());
}

TEST(ExplorationOfTheGate, RefusedAndHeld) {
  explore_all({{give("x"), wait_all(), give("x"), wait_all(), give("x"), wait_all(), shutdown()},
               {give("x"), wait_all(), refuse("x"), give("x"), shutdown(), wait_all()}},
              gate());
}

TEST(ExplorationOfTheGate, Join) {
  explore_all({{give("x"), wait_all(), give("x"), join(), wait_all(), give("x"), wait_all()},
               {give("x"), wait_all(), join(), wait_all(), give("x"), wait_all()}},
              gate());
  explore_all({{give("x"), wait_all(), give("y"), wait_all(), give("y"), join(), wait_all()},
               {give("x"), wait_all(), give("y"), wait_all(), give("x"), join(), wait_all()}},
              gate());
}

TEST(ExplorationOfTheGate, JoinOfThree) {
  explore_all({{give("x"), wait_all(), give("x"), wait_all()},
               {give("x"), wait_all(), give("x"), wait_all()},
               {give("x"), wait_all(), join()}},
              gate());
}

TEST(ExplorationOfTheGate, Leaving) {
  explore_all({{give("x"), wait_all(), give("x"), shutdown(), wait_all()},
               {give("x"), wait_all(), give("x"), wait_all(), give("x"), shutdown(), wait_all()}},
              gate());
  explore_all({{give("x"), wait_all(), give("x"), shutdown(), wait_all()},
               {give("x"), wait_all(), join(), shutdown(), wait_all()}},
              gate());
}

TEST(ExplorationOfTheGate, HeldVotesAndLeaving) {
  explore_all({{give("x"), wait_all(), give("y"), wait_all(), give("y"), give("x"), wait_all()},
               {give("x"), wait_all(), refuse("y"), give("y"), shutdown(), wait_all()}},
              gate(2));
}

// Entries that a rank submits in one breath, and whose places it fills as the last rank, start as
// one batch on all ranks, even if other ranks append in between.
TEST(ExplorationOfTheGate, WhatIsGivenAtOnceFuses) {
  SimulatedCluster::Options fuses = gate();
  fuses.controller.alone_bytes = 1024;
  const auto at_once = [](const std::string& first, const std::string& second) {
    return Program{give(first), in_same_breath(give(second)), wait_all()};
  };
  const auto then = [](Program a, const Program& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const Program xy = at_once("x", "y");
  const Program yx = at_once("y", "x");
  explore_all({then(xy, xy), then(xy, xy)}, fuses);
  explore_all({then(xy, xy), then(yx, yx)}, fuses);
  const Program y_has_another_shape = {give("x"), in_same_breath(give_five("y")), wait_all()};
  explore_all({then(xy, xy), then(xy, y_has_another_shape)}, fuses);
  const Program and_leaves = {give("x"), in_same_breath(give("y")), in_same_breath(shutdown()),
                              wait_all()};
  explore_all({then(xy, and_leaves), then(xy, and_leaves)}, fuses);
}

// The same for ranks on several hosts: also every order of the messages between hosts.
SimulatedCluster::Options gate_between(std::vector<int> host_of, int freeze_after = 1) {
  SimulatedCluster::Options options = gate(freeze_after);
  options.controller.host_of = std::move(host_of);
  return options;
}

TEST(ExplorationOfGatesBetweenHosts, OneNameAgainAndAgain) {
  const Program three = {give("x"), wait_all(), give("x"), wait_all(), give("x"), wait_all()};
  explore_all({three, three}, gate_between({0, 1}));
  const Program two = {give("x"), wait_all(), give("x"), wait_all()};
  explore_all({two, two, two}, gate_between({0, 1, 1}));
  explore_all({two, two, two}, gate_between({0, 0, 1}));
  explore_all({two, two, two}, gate_between({0, 1, 0}));
}

TEST(ExplorationOfGatesBetweenHosts, TwoNamesInDifferentOrders) {
  Program a = {give("x"), give("y"), wait_all(), give("x"), give("y"), wait_all()};
  Program b = {give("y"), give("x"), wait_all(), give("y"), give("x"), wait_all()};
  for (const size_t second : {1, 4}) a[second].same_breath = b[second].same_breath = true;
  explore_all({a, b}, gate_between({0, 1}));
}

TEST(ExplorationOfGatesBetweenHosts, OneRankChangesTheShape) {
  const Program same = {give("x"), wait_all(), give("x"), wait_all(), give("x"), wait_all()};
  const Program other = {give("x"), wait_all(), give_five("x"), wait_all(), give("x"), wait_all()};
  explore_all({same, other}, gate_between({0, 1}));
  explore_all({other, same}, gate_between({0, 1}));
}

TEST(ExplorationOfGatesBetweenHosts, JoinAndLeaving) {
  explore_all({{give("x"), wait_all(), join(), wait_all()},
               {give("x"), wait_all(), give("x"), wait_all(), join(), wait_all()}},
              gate_between({0, 1}));
  explore_all({{give("x"), wait_all(), give("x"), shutdown()},
               {give("x"), wait_all(), shutdown(), wait_all()}},
              gate_between({0, 1}));
}

TEST(ExplorationOfGatesBetweenHosts, NeverSubmitted) {
  explore_all({{give("x"), wait_all(), give("x"), wait_all()},
               {give("x"), wait_all()},
               {give("x"), wait_all(), give("x"), wait_all()}},
              gate_between({0, 1, 1}));
}

TEST(ExplorationOfTheGate, NeverSubmitted) {
  explore_all({{give("x"), give("y"), wait_all(), give("x"), give("y"), wait_all()},
               {give("x"), give("y"), wait_all(), give("y"), wait_all()}},
              gate());
}

// 3 ranks submit 4 tensors, each in every order, twice: 13,824 jobs. Under a sanitizer only every
// 17th.
TEST(Exploration, EveryOrderOfThreeRanksAndFourTensors) {
  std::array<std::string, 4> names = {"a", "b", "c", "d"};
  std::vector<Program> orders;
  do {
    Program program;
    for (int step = 0; step < 2; ++step) {
      for (const std::string& name : names) program.push_back(give(name));
      program.push_back(wait_all());
    }
    program.push_back(shutdown());
    program.push_back(wait_all());
    orders.push_back(program);
  } while (std::next_permutation(names.begin(), names.end()));
  ASSERT_EQ(orders.size(), 24U);
  TimedRun::Options timing;
  SimulatedCluster::Options options;
  options.controller.fusion_bytes_max = 32;  // two tensors
  for (const Program& first : orders) {
    for (const Program& second : orders) {
      for (const Program& third : orders) {
        ++timing.seed;
        const std::vector<Program> programs = {first, second, third};
        SimulatedCluster cluster(options, programs);
        TimedRun(cluster, timing).run();
        const auto wrong = check_outcomes(cluster, expected_outcomes(programs, cluster.names()));
        ASSERT_TRUE(wrong.empty()) << describe(programs) << wrong.front();
      }
    }
  }
}

TEST(Exploration, TenThousandRanks) {
  Program program = {give("x"), give("y"), wait_all(), give("x"), wait_all()};
  std::vector<Program> programs(10'000, program);
  programs[1234] = {give("y"), think(kMillisecond), give("x"), wait_all()};  // one step less
  for (Program& each : programs) {
    each.push_back(join());
    each.push_back(wait_all());
    each.push_back(shutdown());
    each.push_back(wait_all());
  }
  SimulatedCluster cluster({}, programs);
  TimedRun(cluster, {}).run();
  const auto wrong = check_outcomes(cluster, expected_outcomes(programs, cluster.names()));
  EXPECT_TRUE(wrong.empty()) << wrong.front();
}

}  // namespace
}  // namespace horon::simulation
