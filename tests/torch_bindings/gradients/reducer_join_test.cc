// Ranks with more steps than others: those that have called join() take part with nothing.
#include <algorithm>
#include <limits>
#include <string>

#include <torch/optim/sgd.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/lr/lr_scheduler.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::reducer_join_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

constexpr int kCommonSteps = 2;

// Rank r has r steps more than rank 0.
int own_steps() { return kCommonSteps + rank(); }
// The first rank that still has a step of this number, and how many there are.
int first_active(int step) { return std::max(0, step - kCommonSteps + 1); }
int active_ranks(int step) { return size() - first_active(step); }

// The sum over the ranks that are active of f(rank).
template <class Function>
double sum_of_active(int step, Function f) {
  double sum = 0;
  for (int r = first_active(step); r < size(); ++r) sum += f(r);
  return sum;
}

void join_all() { EXPECT_EQ(join(), size() - 1); }

TEST(Join, AveragesAndSumsOfThoseThatAreLeft) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble), u = leaf({1});
    GradientReducer reducer({{"w", w}, {"v", v}, {"u", u}}, alone(op));
    for (int step = 0; step < own_steps(); ++step) {
      w.mutable_grad().reset();
      v.mutable_grad().reset();
      at::Tensor loss = weighted(w, rank() + 1);
      if (rank() == size() - 1) loss = loss + weighted(v, 6);
      loss.backward();
      reducer.synchronize();
      const double ranks = op == ReduceOp::Average ? active_ranks(step) : 1;
      expect_gradient(w, sum_of_active(step, [](int r) { return r + 1; }) / ranks);
      expect_gradient(v, 6 / ranks);
      EXPECT_FALSE(u.grad().defined());
    }
    join_all();
    // All are back.
    w.mutable_grad().reset();
    weighted(w, rank() + 1).backward();
    reducer.synchronize();
    expect_gradient(w, op == ReduceOp::Average ? mean_of_ranks() : sum_of_ranks());
  }
}

TEST(Join, LatePartsDroppedGradientsAndOlderValues) {
  const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, in_flight());
  for (int step = 0; step < own_steps(); ++step) {
    weighted(w, 100).backward();
    w.mutable_grad().reset();  // in flight
    weighted(w, rank() + 1).backward();
    weighted(v, 1).backward();                                             // without zero_grad
    if (rank() == size() - 1) weighted(v, active_ranks(step)).backward();  // a late part
    reducer.synchronize();
    expect_gradient(w, sum_of_active(step, [](int r) { return r + 1; }) / active_ranks(step));
    expect_gradient(v, 2 * (step + 1));
    w.mutable_grad().reset();
  }
  join_all();
}

TEST(Join, WeightsPassesAndErrors) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, {.backward_passes_per_step = 2});
  const auto step_with = [&](int passes) {  // throws in backward() or in synchronize()
    w.mutable_grad().reset();
    for (int pass = 0; pass < passes; ++pass) weighted(w, rank() + 1).backward();
    reducer.synchronize(GradientReducer::Passes::All);
  };
  for (int step = 0; step < own_steps(); ++step) {
    reducer.set_weight(rank() + 2);
    step_with(2);
    const double weights = sum_of_active(step, [](int r) { return r + 2; });
    expect_gradient(w, sum_of_active(step, [](int r) { return 2 * (r + 1) * (r + 2); }) / weights);
    // All ranks that are left hear of a mistake of one of them.
    const std::string last = "rank " + std::to_string(size() - 1);
    EXPECT_THAT(error_of([&] { step_with(rank() == size() - 1 ? 1 : 2); }),
                HasSubstr(last + " called step() before"));
    if (active_ranks(step) == 1) continue;
    if (rank() < size() - 1) reducer.set_weight(1);
    EXPECT_THAT(error_of([&] { step_with(2); }), HasSubstr(last + " did not call set_weight()"));
  }
  join_all();
}

TEST(Join, SparseGradients) {
  const at::Tensor table = leaf({5, 2}, at::kDouble);
  GradientReducer reducer({{"table", table}}, {.sparse_as_dense = false});
  for (int step = 0; step < own_steps(); ++step) {
    table.mutable_grad().reset();
    const at::Tensor row = at::tensor({rank() % 5}, at::kLong);
    (at::embedding(table, row, -1, false, true).sum() * (rank() + 1)).backward();
    reducer.synchronize();
    at::Tensor want = at::zeros({5, 2}, at::kDouble);
    for (int r = first_active(step); r < size(); ++r) want[r % 5] += r + 1;
    ASSERT_EQ(table.grad().layout(), at::kSparse);
    EXPECT_TRUE(at::allclose(table.grad().to_dense(), want / active_ranks(step))) << table.grad();
  }
  join_all();
}

// An older value counts once in a sum, however many ranks take part now or did in the last round.
TEST(Join, OlderValuesOfSums) {
  for (const bool stays_sparse : {false, true}) {
    const at::Tensor table = leaf({5, 2}, at::kDouble);
    GradientReducer reducer({{"table", table}},
                            {.op = ReduceOp::Sum, .sparse_as_dense = !stays_sparse});
    const at::Tensor first = at::zeros({1}, at::kLong);
    double want = 0;
    for (int step = 0; step < own_steps(); ++step) {
      at::embedding(table, first, -1, false, true).sum().backward();  // without zero_grad
      reducer.synchronize();
      want += active_ranks(step);
      const at::Tensor values = table.grad().to_dense();
      EXPECT_EQ(values[0][0].item<double>(), want) << step;
      EXPECT_EQ(values.sum().item<double>(), 2 * want) << step;
    }
    join_all();
    if (stays_sparse) continue;
    table.grad().fill_(3);  // all are back, and hold the same again
    at::embedding(table, first, -1, false, true).sum().backward();
    reducer.synchronize();
    EXPECT_EQ(table.grad()[0][0].item<double>(), 3 + size());
    EXPECT_EQ(table.grad()[1][0].item<double>(), 3);
  }
}

// The ranks that are left have only sparse gradients; the ranks that have joined know nothing of
// that when they are back.
TEST(Join, SparseGradientsWhichARankThatHasJoinedDoesNotKnow) {
  const at::Tensor table = leaf({5, 2}, at::kDouble);
  GradientReducer reducer({{"table", table}}, {.sparse_as_dense = false});
  const auto step = [&](bool dense) {
    table.mutable_grad().reset();
    const at::Tensor row = at::tensor({rank() % 5}, at::kLong);
    (dense ? weighted(table, 1) : at::embedding(table, row, -1, false, true).sum()).backward();
    reducer.synchronize();
  };
  for (int i = 0; i < own_steps(); ++i) step(rank() == 0);
  join_all();
  step(true);
  expect_gradient(table, 1);
  step(rank() == 0);
}

// Those that are left still agree on the plan.
TEST(Join, PlansThatDifferAmongThoseThatAreLeft) {
  const at::Tensor w = leaf({rank() == size() - 1 ? 3 : 2}), v = leaf({2});
  GradientReducer reducer({{"w", w}, {"v", v}}, alone());
  if (size() > 2 && rank() > 0) {
    EXPECT_THAT(error_of([&] { (weighted(w, 1) + weighted(v, 1)).backward(); }),
                AllOf(StartsWith(to_string(ErrorCode::Mismatch)),
                      HasSubstr("parameter \"w\" of rank 1 differs on rank")));
  }
  EXPECT_GE(join(), 0);
}

TEST(Join, LocalChecksStayLocal) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, {.check_finite = true});
  for (int step = 0; step < own_steps(); ++step) {
    w.mutable_grad().reset();
    const bool bad = rank() == size() - 1;
    const at::Tensor loss = weighted(w, bad ? std::numeric_limits<double>::quiet_NaN() : 1);
    EXPECT_THAT(error_of([&] { loss.backward(); }),
                HasSubstr("on rank " + std::to_string(size() - 1) + " holds 3 NaN"));
    weighted(w, rank() + 1).backward();
    reducer.synchronize();
    expect_gradient(w, sum_of_active(step, [](int r) { return r + 1; }) / active_ranks(step));
  }
  join_all();
}

// The recipe: train until the data ends, join, and take over what the last rank has.
TEST(Join, TrainingEndsWithTheParametersOfTheLastRank) {
  at::Tensor w = leaf({3}, at::kDouble);
  DistributedOptimizer optimizer(::torch::optim::SGD({w}, 0.5), NamedTensors{{"w", w}});
  double want = 1;
  for (int step = 0; step < kCommonSteps + size() - 1; ++step) {
    want -= 0.5 * sum_of_active(step, [](int r) { return r + 1; }) / active_ranks(step);
  }
  for (int step = 0; step < own_steps(); ++step) {
    optimizer.zero_grad();
    weighted(w, rank() + 1).backward();
    optimizer.step();
  }
  const int last = join();
  EXPECT_EQ(last, size() - 1);
  {
    const at::NoGradGuard no_grad;
    broadcast_(w, {.name = "w", .root = last});
  }
  EXPECT_TRUE(at::allclose(w, at::full_like(w, want), 1e-12)) << w << want;
}

// Momentum and schedule belong to what is taken over, or the next epoch's steps differ.
TEST(Join, ASecondEpochGoesOnWithWhatTheLastRankHas) {
  const at::Tensor w = leaf({3}, at::kDouble);
  DistributedOptimizer optimizer(
      ::torch::optim::SGD({w}, ::torch::optim::SGDOptions(0.5).momentum(0.9)),
      NamedTensors{{"w", w}});
  LrScheduler scheduler(optimizer, [](double position) { return 1 / (1 + position); });
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int step = 0; step < own_steps(); ++step) {
      optimizer.zero_grad();
      weighted(w, rank() + 1).backward();
      optimizer.step();
      scheduler.step();
    }
    const int last = join();
    broadcast_parameters({{"w", w}}, last);
    broadcast_optimizer_state(optimizer, last);
    scheduler.set_steps(broadcast_object(scheduler.steps(), {.root = last}));
    EXPECT_EQ(scheduler.steps(), (epoch + 1) * (kCommonSteps + size() - 1));
    const at::Tensor of_all = allgather(w.detach().unsqueeze(0));
    EXPECT_TRUE(at::equal(of_all, of_all[0].expand_as(of_all))) << of_all;
  }
}

// On some ranks an epoch ends in the middle of a step. The ranks have made different numbers of
// steps.
class UnfinishedSteps {
 public:
  UnfinishedSteps(const at::Tensor& w, GradientReducer& reducer) : w_(w), reducer_(reducer) {}

  // Each step has two backward passes; an odd one at the end is left over. `ends_steps`: whether
  // the program ends steps by synchronize().
  void epoch(bool ends_steps = true) {
    for (int batch = 1; batch <= batches(); ++batch) {
      weighted(w_, rank() + 1).backward();
      if (batch % 2 != 0) continue;
      if (ends_steps) reducer_.synchronize();
      w_.mutable_grad().reset();
    }
    EXPECT_GE(join(), 0);  // a rank whose last pass is reduced by no round may not be the last
  }
  // The gradient of one more step, in which all ranks take part.
  void expect_step(double want) {
    for (int pass = 0; pass < 2; ++pass) weighted(w_, rank() + 1).backward();
    reducer_.synchronize();
    expect_gradient(w_, want);
    w_.mutable_grad().reset();
  }
  static int batches(int rank = horon::rank()) { return 5 + rank; }
  static bool is_left_over(int rank) { return batches(rank) % 2 != 0; }

 private:
  const at::Tensor w_;
  GradientReducer& reducer_;
};

TEST(Join, AStepThatIsLeftUnfinishedEndsWithIt) {
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    for (const int passes : {1, 2}) {
      for (const bool ends_steps : {true, false}) {
        if (!ends_steps && (passes == 2 || wait_in == WaitIn::Step)) continue;
        SCOPED_TRACE(passes);
        const at::Tensor w = leaf({3}, at::kDouble);
        GradientReducerOptions options = alone(ReduceOp::Average, wait_in);
        options.backward_passes_per_step = passes;
        GradientReducer reducer({{"w", w}}, options);
        UnfinishedSteps steps(w, reducer);
        for (int epoch = 0; epoch < 2; ++epoch) {
          w.mutable_grad().reset();
          steps.epoch(ends_steps);
        }
        w.mutable_grad().reset();
        steps.expect_step(2 * mean_of_ranks());
        steps.expect_step(2 * mean_of_ranks());
      }
    }
  }
}

// It counts as after no_sync(): a plain program would have it in .grad.
TEST(Join, AGradientThatIsLeftOverCountsInTheNextStep) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    const at::Tensor w = leaf({3}, at::kDouble);
    GradientReducer reducer({{"w", w}}, {.op = op, .backward_passes_per_step = 2});
    UnfinishedSteps steps(w, reducer);
    steps.epoch();
    double want = 0;
    for (int r = 0; r < size(); ++r) want += (r + 1) * (steps.is_left_over(r) ? 3 : 2);
    steps.expect_step(op == ReduceOp::Sum ? want : want / size());
    steps.expect_step(2 * (op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks()));
  }
}

// Nobody holds the result of a gradient that one rank alone has submitted.
TEST(Join, AGradientThatWasSubmittedIsGone) {
  const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, in_flight(ReduceOp::Sum));
  const auto backward = [&] { (weighted(w, rank() + 1) + weighted(v, rank() + 1)).backward(); };
  if (rank() == size() - 1) backward();
  EXPECT_GE(join(), 0);
  backward();
  reducer.synchronize();
  expect_gradient(w, sum_of_ranks());
  expect_gradient(v, sum_of_ranks());
}

// It learns of the join in synchronize().
TEST(Join, ARankWithoutABackwardTakesPartAfterIt) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  UnfinishedSteps steps(w, reducer);
  steps.epoch();
  w.mutable_grad().reset();
  const int idle = UnfinishedSteps::is_left_over(size() - 1) ? size() - 1 : size() - 2;
  ASSERT_TRUE(UnfinishedSteps::is_left_over(idle));
  if (rank() != idle) weighted(w, rank() + 1).backward();
  reducer.synchronize();
  expect_gradient(w, (sum_of_ranks() - idle - 1) / size());
}

// On some ranks the bucket goes without v, where the others add theirs.
TEST(Join, WhatOthersHaveAddedToASubmittedBucketIsGone) {
  const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, {.op = ReduceOp::Sum, .wait_in = WaitIn::Step});
  const auto backward = [&] {
    w.mutable_grad().reset();
    v.mutable_grad().reset();
    (rank() == 0 ? weighted(w, 1) + weighted(v, 5) : weighted(w, rank() + 1)).backward();
  };
  backward();
  reducer.synchronize();
  backward();
  EXPECT_EQ(reducer.statistics().submitted_in_backward, rank() == 0 ? 2 : 1);
  EXPECT_GE(join(), 0);
  backward();
  reducer.synchronize();
  expect_gradient(w, sum_of_ranks());
  expect_gradient(v, 5);
}

TEST(Join, AWeightMayFollowAGradientThatIsLeftOver) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, {.backward_passes_per_step = 2});
  UnfinishedSteps steps(w, reducer);
  steps.epoch();
  w.mutable_grad().reset();
  reducer.set_weight(rank() + 1);
  double sum = 0;
  for (int r = 0; r < size(); ++r) sum += 2.0 * (r + 1) * (r + 1);
  steps.expect_step(sum / sum_of_ranks());
}

// One rank has begun a step for which the others had no data.
TEST(Join, AWeightOfAStepThatWasNotMadeIsGone) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  if (rank() == size() - 1) reducer.set_weight(3);
  EXPECT_GE(join(), 0);
  weighted(w, rank() + 1).backward();
  reducer.synchronize();
  expect_gradient(w, mean_of_ranks());
}

// A set has a join of its own.
TEST(Join, InsideAProcessSet) {
  const ProcessSet set = add_even_odd_process_set();
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducerOptions options = alone();
  options.process_set = set;
  GradientReducer reducer({{"w", w}}, options);
  for (int step = 0; step <= set.rank(); ++step) {
    w.mutable_grad().reset();
    weighted(w, rank() + 1).backward();
    reducer.synchronize();
    double sum = 0;
    for (int i = step; i < set.size(); ++i) sum += set.ranks()[static_cast<size_t>(i)] + 1;
    expect_gradient(w, sum / (set.size() - step));
  }
  EXPECT_EQ(join(set), set.ranks().back());
}

}  // namespace
}  // namespace horon::reducer_join_test
