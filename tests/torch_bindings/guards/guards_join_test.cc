// The guards where ranks have joined: while they are away, and when they come back.
#include <filesystem>
#include <string>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/guards/best_checkpoint.h"
#include "horon/torch_bindings/guards/early_stopping.h"
#include "horon/torch_bindings/guards/save0.h"
#include "horon/torch_bindings/guards/stop_request.h"

namespace horon::guards_join_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

constexpr int kCommonSteps = 2;
int own_steps() { return kCommonSteps + rank(); }      // so the last rank comes last
int all_steps() { return kCommonSteps + size() - 1; }  // the steps of the last rank

template <class Value>
void expect_alike(const Value& own) {
  EXPECT_THAT(allgather_object(own), Each(broadcast_object(own)));
}

// Rank 0 has joined while the others run `work`.
void without_rank_0(const std::function<void()>& work) {
  if (rank() != 0) work();
  join();
}

TEST(EarlyStoppingAfterJoin, GoesOnWhereTheLastRankIs) {
  EarlyStopping stopping({.agree_on = AgreeOn::Mean, .patience = 3});
  for (int step = 0; step < own_steps(); ++step) EXPECT_FALSE(stopping.check(10.0 - step));
  join();
  EXPECT_FALSE(stopping.check(20));
  EXPECT_EQ(stopping.state().checks, all_steps() + 1);
  EXPECT_EQ(stopping.state().best_check, all_steps());
  EXPECT_EQ(stopping.best(), 10 - (all_steps() - 1));
  EXPECT_FALSE(stopping.check(20));
  EXPECT_TRUE(stopping.check(20));
  expect_alike(stopping.reason());
  // What the last rank had decided holds for the others too.
  EarlyStopping enough({.agree_on = AgreeOn::Mean, .good_enough = 0});
  for (int step = 0; step < own_steps(); ++step) {
    enough.check(static_cast<double>(all_steps() - 1 - step));
  }
  join();
  EXPECT_TRUE(enough.check(1));
  expect_alike(enough.reason());
}

TEST(EarlyStoppingAfterJoin, OfARankThatHasNotCheckedBefore) {
  EarlyStopping stopping({.agree_on = AgreeOn::Max});
  without_rank_0([&] {
    stopping.check(3);
    stopping.check(2);
  });
  EXPECT_FALSE(stopping.check(2.5));
  EXPECT_EQ(stopping.best(), 2);
  EXPECT_EQ(stopping.state().checks, 3);
}

TEST(EarlyStoppingAfterJoin, UnequalChecksWithoutAJoinInBetweenAreStillAnError) {
  for (const int before : {0, 1}) {
    EarlyStopping stopping({.name = "stop", .agree_on = AgreeOn::Mean});
    for (int i = 0; i < before; ++i) stopping.check(1);
    join();
    stopping.check(1);
    if (rank() == 0) stopping.set_state({.checks = 4});
    EXPECT_THAT(error_of([&] { stopping.check(1); }),
                AllOf(StartsWith("mismatch: \"stop\": the ranks are at different decisions: " +
                                 std::to_string(before + 2) + " on "),
                      HasSubstr("broadcast_state()")));
  }
}

TEST(EarlyStoppingAfterJoin, ByTheFirstRankWhichHasJoined) {
  EarlyStopping stopping({.name = "stop", .better = Better::Higher});
  stopping.check(rank() == 0 ? 0.5 : -1);
  without_rank_0([&] {
    EXPECT_THAT(
        error_of([&] { stopping.check(1000); }),
        AllOf(StartsWith("rank left: \"stop\": rank 0 has joined"), HasSubstr("AgreeOn::Mean")));
    EXPECT_EQ(stopping.best(), 0.5);
  });
  EXPECT_FALSE(stopping.check(rank() == 0 ? 0.75 : -1));
  EXPECT_EQ(stopping.best(), 0.75);
}

TEST(BestCheckpointAfterJoin, GoesOnWithTheListOfTheLastRank) {
  BestCheckpoint best({.agree_on = AgreeOn::Mean, .keep = 2});
  for (int step = 0; step < own_steps(); ++step) best.judge(step, 10.0 - step);
  join();
  const int64_t last = all_steps() - 1;
  const CheckpointDecision decision = best.judge(100, 10.5 - static_cast<double>(last));
  EXPECT_TRUE(decision.save);
  EXPECT_EQ(decision.remove, std::vector<int64_t>{last - 1});
  ASSERT_EQ(best.kept().size(), 2U);
  EXPECT_EQ(best.kept()[0].step, last);
  EXPECT_EQ(best.kept()[1].step, 100);
}

TEST(BestCheckpointAfterJoin, ListsThatDifferWithoutAJoinAreAnError) {
  BestCheckpoint best({.name = "best"});
  if (rank() == 1) best.set_kept({{.step = 7, .value = 0.25}});
  EXPECT_THAT(error_of([&] { best.judge(8, 1); }),
              AllOf(StartsWith("mismatch: \"best\": rank 1 has a different state from rank 0"),
                    HasSubstr("broadcast_state()")));
}

TEST(StopRequestAfterJoin, StaysWhereTheRankThatAskedHasJoined) {
  StopRequest stop;
  const bool asks = rank() == size() - 1;
  if (asks) stop.request();
  EXPECT_TRUE(stop.check());
  if (!asks) {
    EXPECT_TRUE(stop.check());
    EXPECT_EQ(stop.reason(), "request() on rank " + std::to_string(size() - 1));
  }
  join();
}

TEST(RankZeroHasJoined, WhatItAloneDoesIsAnErrorOfTheOthers) {
  const std::string folder = broadcast_object(
      (std::filesystem::temp_directory_path() / ("joined_" + std::to_string(getpid()))).string());
  const auto expect_error = [](const char* call, const std::function<void()>& work) {
    EXPECT_THAT(error_of(work), AllOf(StartsWith(std::string("rank left: ") + call),
                                      HasSubstr("rank 0 has joined")));
  };
  without_rank_0([&] {
    expect_error("save0", [&] { save0(at::ones({3}), folder + ".pt"); });
    expect_error("Checkpoints", [&] { const Checkpoints unused(folder); });
  });
  EXPECT_FALSE(std::filesystem::exists(folder + ".pt"));
  EXPECT_FALSE(std::filesystem::exists(folder));
  barrier();
  at::Tensor thing = at::ones({3});
  Checkpoints checkpoints(folder);
  checkpoints.add("thing", {{"thing", thing}});
  checkpoints.save(1);
  without_rank_0([&] {
    expect_error("Checkpoints::save", [&] { checkpoints.save(2); });
    expect_error("Checkpoints::wait", [&] { checkpoints.wait(); });
    expect_error("Checkpoints::load", [&] { checkpoints.load_latest(); });
    expect_error("Checkpoints", [&] { checkpoints.latest(); });
  });
  checkpoints.wait();
  EXPECT_EQ(checkpoints.load_latest()->step, 1);
  barrier();
  rank_zero_only([&] { std::filesystem::remove_all(folder); });
}

}  // namespace
}  // namespace horon::guards_join_test
