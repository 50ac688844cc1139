// HORON_AUTOTUNE: the ranks change the sizes of their buckets together, while training goes on.
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "horon/tests/support/mpi_main.h"
#include "horon/tests/support/statistics_between_collectives.h"
#include "horon/tests/torch_bindings/gradients/autotune_support.h"

namespace horon {
namespace {

using testing::Each;
using testing::HasSubstr;
using namespace testing_support;

using Autotune = AutotuneFixture;

TEST_F(Autotune, ASlowStartIsLeftAndNothingIsPaidAfterwards) {
  if (test_size() == 1) return;
  start(kManyBuckets);
  {
    CostlyTraining training(kCostly);
    training.steps(1);
    EXPECT_EQ(training.buckets(), kTunedParameters);
    training.steps_until_kept(path_ + ".warm");
    EXPECT_LE(training.buckets(), 3);
    // A collective that thawed in the search must run more often in a row before it is frozen
    // again.
    for (int i = 0; i < 600; ++i) training.step(/*looks=*/false);
    const Statistics before = test::statistics_between_collectives();
    for (int i = 0; i < 3; ++i) training.step(/*looks=*/false);
    const Statistics after = test::statistics_between_collectives();
    EXPECT_EQ(after.frozen_starts - before.frozen_starts,
              3 * static_cast<uint64_t>(training.buckets()));
    EXPECT_EQ(after.negotiated_starts, before.negotiated_starts);
    EXPECT_EQ(after.control_messages_sent, before.control_messages_sent);
    barrier();
  }
  if (rank() == 0) {
    const std::string table = this->table();
    EXPECT_EQ(table.find("reducer,elapsed_s,stage,bucket_bytes,first_bucket_bytes,piece_bytes,"),
              0U)
        << table;
    EXPECT_EQ(lines_with(table, ",search,1024,1024,0,12,"), 1) << table;
    EXPECT_EQ(lines_with(table, ",comparison,1024,1024,0,12,"), 6) << table;
    EXPECT_EQ(lines_with(table, ",comparison,"), 12) << table;
    EXPECT_EQ(lines_with(table, ",kept,"), 1) << table;
    EXPECT_THAT(kept(), HasSubstr("12 gradients of 196608 elements (Average), " +
                                  std::to_string(size()) + " ranks on 1 host\tbucket_bytes="));
  }
}

TEST_F(Autotune, WhereNothingIsFasterItEndsAtTheStart) {
  if (test_size() == 1) return;
  start(kOneBucket);
  {
    CostlyTraining training(kCostly);
    training.steps_until_kept(path_ + ".warm");
    EXPECT_EQ(training.buckets(), 1);
  }
  if (rank() == 0) {
    EXPECT_EQ(lines_with(table(), ",kept,67108864,16777216,0,1,"), 1) << table();
    EXPECT_THAT(kept(),
                HasSubstr("bucket_bytes=67108864 first_bucket_bytes=16777216 piece_bytes=0"));
  }
}

// The second run compares what the first has found with its start, and does not search.
TEST_F(Autotune, TheNextRunBeginsWithWhatWasFound) {
  if (test_size() == 1) return;
  std::string found;
  for (int run = 0; run < 2; ++run) {
    start(kManyBuckets);
    {
      CostlyTraining training(kCostly, {.name = "model"});
      if (run == 0) training.steps_until_kept(path_ + ".warm");
      if (run == 1) training.steps(240);
      EXPECT_LE(training.buckets(), 3);
    }
    if (rank() == 0 && run == 0) found = kept();
    if (rank() == 0 && run == 1) {
      EXPECT_EQ(kept(), found);
      // The table is that of this process, which has written the searches of the first run too.
      EXPECT_EQ(lines_with(table(), ",comparison,"), 24) << table();
      EXPECT_LE(lines_with(table(), ",search,"), 6) << table();
    }
  }
}

// One warning, and a search as if there were no file.
TEST_F(Autotune, AFileThatDoesNotFitIsNamedOnce) {
  if (test_size() == 1) return;
  const std::string title = "# Horon autotuning 1: reducer, facts, settings\n";
  const std::map<std::string, std::string> files = {
      {title + "model\t12 gradients of 196608 elements (Average), 7 ranks on 1 host\t" +
           "bucket_bytes=65536 first_bucket_bytes=65536\n",
       ", 7 ranks on 1 host, but this job has 12 gradients"},
      {"epoch,loss\n", "is not a file of Horon's autotuning"}};
  for (const auto& [text, warning] : files) {
    if (test_rank() == 0) std::ofstream(path_ + ".warm") << text;
    start(kManyBuckets);
    if (rank() == 0) testing::internal::CaptureStderr();
    {
      CostlyTraining training(kNothing, {.name = "model"});
      training.steps(40);
    }
    if (rank() == 0) {
      const std::string log = testing::internal::GetCapturedStderr();
      EXPECT_EQ(lines_with(log, "warning: "), 1) << log;
      EXPECT_EQ(lines_with(log, warning), 1) << log;
      EXPECT_EQ(lines_with(log, path_ + ".warm"), 1) << log;
      EXPECT_GE(lines_with(log, "autotune \"model\": search 1: buckets of 1 KiB"), 1) << log;
      EXPECT_EQ(kept(), text);  // until there is something better to say
    }
  }
}

// A rank that comes back from join() would have old buckets, so nothing changes before that.
TEST_F(Autotune, WaitsForRanksThatHaveJoined) {
  if (test_size() == 1) return;
  start(kManyBuckets);
  {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < kTunedParameters; ++i) parameters.push_back(leaf({kElementsOfEach}));
    GradientReducer reducer(parameters);
    const auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        for (const at::Tensor& w : parameters) w.mutable_grad().reset();
        at::Tensor loss = at::zeros({});
        for (const at::Tensor& w : parameters) loss = loss + weighted(w, 1);
        loss.backward();
        clock_s += 0.01;
        reducer.synchronize();
        for (const at::Tensor& w : parameters) expect_gradient(w, 1);
      }
    };
    for (int epoch = 0; epoch < 4; ++epoch) {
      steps(20);
      if (rank() != size() - 1) steps(40 + 7 * epoch);
      (void)join();
      const std::vector<int64_t> buckets = allgather_object(reducer.statistics().buckets);
      EXPECT_THAT(buckets, Each(buckets.front()));
    }
  }
}

TEST_F(Autotune, SeveralReducersTakeTurns) {
  if (test_size() == 1) return;
  std::map<std::string, std::string> knobs = kManyBuckets;
  knobs["HORON_AUTOTUNE_STEPS"] = "6";  // one of them has the other reducer's steps in its time
  start(knobs);
  {
    CostlyTraining a(kCostly, {.name = "a"});
    CostlyTraining b(kCostly, {.name = "b"});
    for (int i = 0; i < 60; ++i) {
      a.steps(16);
      b.steps(16);
      const bool both = rank() != 0 || table().find("\"b\",") != std::string::npos;
      if (broadcast_object(static_cast<int64_t>(both)) != 0) break;
    }
    EXPECT_LE(a.buckets(), 3);
  }
  if (rank() != 0) return;
  const std::string rows = table();
  EXPECT_EQ(lines_with(rows.substr(0, rows.find("\"b\",")), ",kept,"), 1) << rows;
}

// The ranks stay alike when the program changes the reducer in the middle of the search.
TEST_F(Autotune, GoesOnWhenTheProgramChangesTheReducer) {
  if (test_size() == 1) return;
  start(kManyBuckets);
  {
    CostlyTraining training(kNothing, {.wait_in = WaitIn::Step});
    training.steps(35);
    training.reducer().set_backward_passes_per_step(2);
    for (int i = 0; i < 3; ++i) training.step();
    training.reducer().set_backward_passes_per_step(1);
    training.steps(35);
    const at::Tensor more = leaf({kElementsOfEach});
    training.reducer().add_parameters({{"more", more}});
    training.steps(35);
    training.reducer().before_bucket([](const BucketView&) {});
    training.steps(20);
    EXPECT_EQ(training.buckets(), kTunedParameters + 1);  // gave up
  }
}

// In the middle of the search, where the program changes the reducer in the same step.
TEST_F(Autotune, FunctionsBringTheStartBack) {
  if (test_size() == 1) return;
  start(kManyBuckets);
  {
    CostlyTraining training(kCostly, {.wait_in = WaitIn::Step});
    int steps = 0;
    while (training.buckets() == kTunedParameters && ++steps < 100) training.step();
    EXPECT_LT(training.buckets(), kTunedParameters);
    training.reducer().before_bucket([](const BucketView&) {});
    const at::Tensor more = leaf({kElementsOfEach});
    training.reducer().add_parameters({{"more", more}});
    training.steps(20);
    EXPECT_EQ(training.buckets(), kTunedParameters + 1);
  }
}

// As where a program learns what its buckets are.
TEST_F(Autotune, BeginsWhenFunctionsAreGone) {
  if (test_size() == 1) return;
  start(kManyBuckets);
  {
    CostlyTraining training(kCostly);
    training.reducer().before_bucket([](const BucketView&) {});
    training.reducer().after_bucket([](const BucketView&) {});
    training.steps(5);
    training.reducer().before_bucket(nullptr);
    training.steps(5);
    EXPECT_EQ(table(), "");
    training.reducer().after_bucket(nullptr);
    training.steps_until_kept(path_ + ".warm");
    EXPECT_LE(training.buckets(), 3);
  }
  EXPECT_EQ(lines_with(table(), ",kept,"), test_rank() == 0 ? 1 : 0);
}

TEST_F(Autotune, OneRankHasNothingToTune) {
  if (test_size() > 1) return;
  start(kManyBuckets);
  {
    CostlyTraining training(kNothing);
    training.steps(40);
  }
  EXPECT_EQ(table() + kept(), "");
}

}  // namespace
}  // namespace horon
