// Votes that carry the elements (core::Eager): every order of events in small worlds.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/core/negotiation/explore_all.h"
#include "horon/tests/support/simulation/check_outcomes.h"
#include "horon/tests/support/simulation/timed_run.h"

namespace horon::simulation {
namespace {

// Each rank on a host of its own. Once a name has an id, votes for it carry the elements, but for
// some (simulated_cluster.cc).
SimulatedCluster::Options eager(int ranks) {
  SimulatedCluster::Options options;
  options.controller.eager = true;
  for (int host = 0; host < ranks; ++host) options.controller.host_of.push_back(host);
  return options;
}

TEST(EagerVotes, OfTwoAndThreeRanks) {
  const Program thrice = {give("x"), wait_all(), give("x"), wait_all(), give("x"), wait_all()};
  explore_all({thrice, thrice}, eager(2));
  const Program twice = {give("x"), wait_all(), give("x"), wait_all()};
  explore_all({twice, twice, twice}, eager(3));
}

TEST(EagerVotes, OfTwoNames) {
  explore_all({{give("x"), give("y"), wait_all(), give("x"), give("y"), wait_all()},
               {give("x"), give("y"), wait_all(), give("y"), give("x"), wait_all()}},
              eager(2));
}

TEST(EagerVotes, BesideJoin) {
  const Program last = {give("x"), wait_all(), join(), wait_all(), shutdown(), wait_all()};
  explore_all(
      {{give("x"), wait_all(), give("x"), wait_all(), join(), wait_all(), shutdown(), wait_all()},
       last},
      eager(2));
  explore_all({{give("x"), wait_all(), give("x"), join(), wait_all()},
               {give("x"), wait_all(), join(), wait_all()}},
              eager(2));
}

// Worlds with too many orders to visit all: some of them.
void run_often(const std::vector<Program>& programs) {
  TimedRun::Options timing;
  timing.latency_max = 100 * kMillisecond;  // channels differ
  for (timing.seed = 1; timing.seed <= 500; ++timing.seed) {
    SimulatedCluster cluster(eager(static_cast<int>(programs.size())), programs);
    TimedRun(cluster, timing).run();
    const auto wrong = check_outcomes(cluster, expected_outcomes(programs, cluster.names()));
    ASSERT_TRUE(wrong.empty()) << "seed " << timing.seed << ": " << wrong.front();
    EXPECT_GT(cluster.rank(0).controller->statistics().eager_starts, 0U);
  }
}

// Two of three ranks are ahead of what the coordinator has heard, and their next words wait there.
TEST(EagerVotes, OfRanksAhead) {
  Program program;
  for (int round = 0; round < 6; ++round) {
    for (const char* name : {"x", "y"}) program.push_back(give(name));
    program.push_back(wait_all());
  }
  program.insert(program.end(), {join(), wait_all(), shutdown(), wait_all()});
  run_often({program, program, program});
}

// The coordinator has the elements of all ranks before another rank has: the end waits for it.
TEST(EagerVotes, OfRanksThatLeave) {
  const Action pause = think(kMillisecond);  // the second call is one that is eager on all ranks
  const Program leaves = {give("x"), wait_all(), pause,      pause,
                          pause,     give("x"),  shutdown(), wait_all()};
  run_often({leaves, leaves, leaves});
}

// Delivers what has been sent, but nothing from `from` to `to`; returns how many messages wait
// there.
size_t deliver_but(SimulatedCluster& cluster, int from, int to, size_t waiting) {
  for (auto sent = cluster.take_sent(); !sent.empty(); sent = cluster.take_sent()) {
    for (const auto& [sender, receiver] : sent) {
      if (sender == from && receiver == to) {
        ++waiting;
        continue;
      }
      cluster.deliver(sender, receiver);
      cluster.flush(receiver);
    }
  }
  return waiting;
}

void act(SimulatedCluster& cluster, size_t times) {
  for (int rank = 0; rank < cluster.size(); ++rank) {
    for (size_t i = 0; i < times; ++i) cluster.act(rank);
    cluster.flush(rank);
  }
}

// Runs the first call, by a Plan, and then six more actions of each rank, of which the fifth is an
// eager call. What rank 1 has sent to rank 2 since waits: returns how many messages.
size_t run_until_rank_2_lags(SimulatedCluster& cluster) {
  act(cluster, 1);
  EXPECT_EQ(deliver_but(cluster, 1, 2, 0), 0U);
  for (int rank = 0; rank < cluster.size(); ++rank) {
    cluster.finish(rank);
    cluster.flush(rank);
  }
  act(cluster, 5);
  const size_t waiting = deliver_but(cluster, 1, 2, 0);
  act(cluster, 1);
  return deliver_but(cluster, 1, 2, waiting);
}

// The coordinator finds that all have joined while elements that it has are still on their way from
// rank 1 to rank 2: there join() must not return before the call that was made before it.
TEST(EagerVotes, JoinReturnsBehindThem) {
  const Action pause = think(0);
  const Program program = {give("x"), pause, pause, pause, pause, give("x"), join()};
  SimulatedCluster cluster(eager(3), {program, program, program});
  const size_t waiting = run_until_rank_2_lags(cluster);
  const auto outcome = [&](int rank, size_t action) {
    return cluster.rank(rank).outcomes.at(action).kind;
  };
  EXPECT_EQ(outcome(0, 6), Outcome::Kind::Joined);
  EXPECT_EQ(outcome(2, 5), Outcome::Kind::Pending);
  EXPECT_EQ(outcome(2, 6), Outcome::Kind::Pending);
  ASSERT_EQ(waiting, 1U);
  cluster.deliver(1, 2);
  cluster.flush(2);
  EXPECT_EQ(outcome(2, 5), Outcome::Kind::Ran);
  EXPECT_EQ(outcome(2, 6), Outcome::Kind::Joined);
  EXPECT_EQ(cluster.violations(), std::vector<std::string>());
}

// The same, and the others go on without rank 2 before it has heard from rank 1: what they say
// about the next call must not end the one before.
TEST(EagerVotes, RecordsOfTheNextCallComeBehindThem) {
  const Action pause = think(0);
  const Program goes_on = {give("x"), pause, pause, pause, pause, give("x"), pause, give("x")};
  const Program joins = {give("x"), pause, pause, pause, pause, give("x"), join(), pause};
  SimulatedCluster cluster(eager(3), {goes_on, goes_on, joins});
  size_t waiting = run_until_rank_2_lags(cluster);
  act(cluster, 1);
  waiting = deliver_but(cluster, 1, 2, waiting);
  EXPECT_EQ(cluster.rank(2).outcomes.at(5).kind, Outcome::Kind::Pending);
  ASSERT_GE(waiting, 1U);
  for (size_t i = 0; i < waiting; ++i) {
    cluster.deliver(1, 2);
    cluster.flush(2);
  }
  const Outcome& earlier = cluster.rank(2).outcomes.at(5);
  ASSERT_EQ(earlier.kind, Outcome::Kind::Ran);
  EXPECT_EQ(earlier.contributors, 3);
  ASSERT_TRUE(cluster.can_finish(0));
  cluster.finish(0);
  EXPECT_EQ(cluster.rank(0).outcomes.at(7).contributors, 2);
  EXPECT_EQ(cluster.violations(), std::vector<std::string>());
}

// A name whose shape has changed is eager again once it has come twice with the new one.
TEST(EagerVotes, OfANameWithSeveralShapes) {
  const Action other = submit("x", tensor("x", {5}));
  Program program;
  for (const Action& each : {give("x"), other, give("x"), other}) {
    for (int times = 0; times < 5; ++times) program.insert(program.end(), {each, wait_all()});
  }
  run_often({program, program, program});
  explore_all({{give("x"), wait_all(), other, wait_all(), other, wait_all()},
               {give("x"), wait_all(), other, wait_all(), other, wait_all()}},
              eager(2));
}

TEST(EagerVotes, ThatDiffer) {
  const Action other = submit("x", tensor("x", {5}));
  explore_all({{give("x"), wait_all(), give("x"), wait_all(), give("x"), wait_all()},
               {give("x"), wait_all(), other, wait_all(), give("x"), wait_all()}},
              eager(2));
  explore_all(
      {{give("x"), wait_all(), give("x"), wait_all(), other, wait_all(), give("x"), wait_all()},
       {give("x"), wait_all(), give("x"), wait_all(), other, wait_all(), give("x"), wait_all()}},
      eager(2));
  explore_all({{give("x"), wait_all(), give("x"), wait_all(), give("x"), wait_all()},
               {give("x"), wait_all(), refuse("x"), give("x"), wait_all()}},
              eager(2));
}

TEST(EagerVotes, ThatNeverComplete) {
  const Program twice = {give("x"), wait_all(), give("x"), wait_all()};
  explore_all({twice, twice, {give("x"), wait_all()}}, eager(3));
  explore_all({{give("x"), wait_all(), give("x"), wait_all(), shutdown(), wait_all()},
               {give("x"), wait_all(), shutdown(), wait_all()}},
              eager(2));
}

}  // namespace
}  // namespace horon::simulation
