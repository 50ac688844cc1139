// Weighted averages, passes that are not reduced, and functions that see the buckets.
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <torch/optim/sgd.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::reducer_scopes_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using namespace testing_support;

// Gradients r + 1 with weight r, so that rank 0 does not count.
double weighted_mean() {
  double sum = 0, weights = 0;
  for (int r = 0; r < size(); ++r) {
    sum += r * (r + 1.0);
    weights += r;
  }
  return sum / weights;
}

TEST(ReducerWeights, MeanOverAllSamples) {
  if (size() == 1) return;
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor w = leaf({3}, dtype), v = leaf({2}, dtype);
    GradientReducer reducer({{"w", w}, {"v", v}}, alone());
    for (int step = 1; step <= 3; ++step) {  // without zero_grad
      reducer.set_weight(rank());
      // The mean over no samples is NaN.
      weighted(w, rank() == 0 ? kNaN : rank() + 1).backward();
      reducer.synchronize();
      expect_gradient(w, step * weighted_mean());
      EXPECT_FALSE(v.grad().defined());
    }
    // No rank has a new gradient: the older value stays as it was.
    reducer.set_weight(rank());
    reducer.synchronize();
    expect_gradient(w, 3 * weighted_mean());
    // The weight was for one step.
    w.mutable_grad().reset();
    weighted(w, rank() + 1).backward();
    reducer.synchronize();
    expect_gradient(w, mean_of_ranks());
  }
}

TEST(ReducerWeights, LatePartsAndNumbersToo) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, in_flight());
  for (int step = 0; step < 2; ++step) {
    w.mutable_grad().reset();
    reducer.set_weight(10 * (rank() + 1));
    weighted(w, rank() + 1).backward();
    weighted(w, 2 * (rank() + 1)).backward();
    EXPECT_EQ(reducer.statistics().late_parts, step + 1);
    reducer.synchronize();
    double squares = 0;
    for (int r = 1; r <= size(); ++r) squares += r * r;
    expect_close(w, 3 * squares / sum_of_ranks());
    EXPECT_NEAR(reducer.reduce_number(rank() + 1), squares / sum_of_ranks(), 1e-12);
  }
}

TEST(ReducerWeights, CountInTheirStepAlone) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  for (const bool weighs : {false, true, false, true, false}) {
    w.mutable_grad().reset();
    if (weighs) reducer.set_weight(rank() == 0 ? 0 : 1);
    weighted(w, rank() + 1).backward();
    reducer.synchronize();
    const double others = size() == 1 ? 0 : (sum_of_ranks() - 1) / (size() - 1);
    if (!weighs || size() > 1) expect_close(w, weighs ? others : mean_of_ranks());
    EXPECT_NEAR(reducer.reduce_number(rank() + 1), weighs ? others : mean_of_ranks(), 1e-12);
  }
}

TEST(ReducerWeights, RanksWithoutOneAreNamed) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}});
  for (int step = 0; step < 2; ++step) {
    if (rank() == 0) reducer.set_weight(3);
    if (size() == 1) {
      weighted(w, rank() + 1).backward();
      reducer.synchronize();
      continue;
    }
    const std::string error = error_of([&] { weighted(w, rank() + 1).backward(); });
    EXPECT_THAT(error, AllOf(StartsWith(kMismatch), HasSubstr("did not call set_weight()")));
    EXPECT_THAT(error, HasSubstr(size() == 2   ? ": rank 1 did not"
                                 : size() == 3 ? ": ranks 1 and 2 did not"
                                               : ": ranks 1, 2 and 3 did not"));
    EXPECT_FALSE(w.grad().defined());
  }
  w.mutable_grad().reset();
  reducer.set_weight(1);
  weighted(w, rank() + 1).backward();
  reducer.synchronize();
  expect_close(w, mean_of_ranks());
}

TEST(ReducerWeights, NobodyHasSamples) {
  const at::Tensor w = leaf({3}, at::kDouble), v = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, alone());
  weighted(v, 2).backward();
  reducer.synchronize();
  reducer.set_weight(0);
  (weighted(w, kNaN) + weighted(v, 0)).backward();
  reducer.synchronize();
  EXPECT_FALSE(w.grad().defined());
  expect_close(v, 2);
}

TEST(ReducerWeights, WrongOnesAreRefused) {
  const at::Tensor w = leaf({3});
  {
    GradientReducer sum({{"w", w}}, {.op = ReduceOp::Sum});
    EXPECT_THAT(error_of([&] { sum.set_weight(1); }),
                AllOf(StartsWith(kInvalid), HasSubstr("Average")));
  }
  GradientReducer reducer({{"w", w}}, {.name = "named"});
  EXPECT_THAT(error_of([&] { reducer.set_weight(-1); }), StartsWith(kInvalid));
  EXPECT_THAT(error_of([&] { reducer.set_weight(kNaN); }), StartsWith(kInvalid));
  {
    const auto quiet = reducer.no_sync();
    weighted(w, 1).backward();
  }
  EXPECT_THAT(error_of([&] { reducer.set_weight(1); }),
              AllOf(StartsWith(kInvalid), HasSubstr("\"named\""), HasSubstr("\"w\"")));
  reducer.synchronize();
  expect_gradient(w, 1);
}

// The others have its gradients in their buckets, and do not know what they weigh.
TEST(ReducerWeights, OfARankThatJoinsBetweenBackwardAndTheStep) {
  if (size() == 1) GTEST_SKIP() << "nobody else makes the step";
  const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, in_flight());
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int step = 0; step < 2; ++step) {
      reducer.set_weight(rank() + 1);
      w.mutable_grad().reset();
      v.mutable_grad().reset();
      (weighted(w, rank() + 1) + weighted(v, rank() + 1)).backward();
      if (step == 1 && rank() == size() - 1) break;
      const std::string error = error_of([&] { reducer.synchronize(); });
      if (step == 0) {
        EXPECT_EQ(error, "no error");
        double squares = 0;
        for (int r = 1; r <= size(); ++r) squares += r * r;
        for (const at::Tensor& each : {w, v}) expect_close(each, squares / sum_of_ranks());
      } else {
        EXPECT_THAT(error, AllOf(StartsWith(to_string(ErrorCode::RankLeft)),
                                 HasSubstr("call join() on each rank after its last step")));
        EXPECT_FALSE(w.grad().defined());
      }
    }
    EXPECT_GE(join(), 0);
  }
}

TEST(ReducerScopes, NoSyncAddsUpOnThisRank) {
  const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, alone(ReduceOp::Sum));
  for (int step = 0; step < 2; ++step) {
    w.mutable_grad().reset();
    v.mutable_grad().reset();
    {
      const auto outer = reducer.no_sync();
      weighted(w, rank() + 1).backward();
      weighted(v, rank() + 1).backward();  // in this pass only
      const auto inner = reducer.no_sync();
      weighted(w, rank() + 1).backward();
    }
    EXPECT_EQ(reducer.statistics().submitted_in_backward, step);
    weighted(w, 1).backward();
    EXPECT_EQ(reducer.statistics().submitted_in_backward, step + 1);
    reducer.synchronize();
    expect_close(w, 2 * sum_of_ranks() + size());
    expect_close(v, sum_of_ranks());
  }
  EXPECT_EQ(reducer.statistics().late_parts, 0);
}

TEST(ReducerScopes, NoSyncAloneIsReducedBySynchronize) {
  const at::Tensor w = leaf({3});
  std::optional<GradientReducer> reducer(std::in_place, NamedTensors{{"w", w}});
  const auto scope = reducer->no_sync();
  weighted(w, rank() + 1).backward();
  expect_gradient(w, rank() + 1);
  reducer->synchronize();
  expect_gradient(w, mean_of_ranks());
  reducer.reset();  // before its scope
}

TEST(ReducerScopes, NoSyncDoesNotCountAsAPass) {
  const at::Tensor w = leaf({3});
  GradientReducer reducer({{"w", w}}, {.backward_passes_per_step = 2});
  {
    const auto scope = reducer.no_sync();
    for (int pass = 0; pass < 3; ++pass) weighted(w, 1).backward();
  }
  weighted(w, rank() + 1).backward();
  EXPECT_EQ(reducer.statistics().submitted_in_backward, 0);
  weighted(w, rank() + 1).backward();
  EXPECT_EQ(reducer.statistics().submitted_in_backward, 1);
  reducer.synchronize(GradientReducer::Passes::All);
  expect_gradient(w, 3 + 2 * mean_of_ranks());
}

TEST(ReducerScopes, FunctionsBeforeAndAfterBuckets) {
  const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2, 2}, at::kDouble), u = leaf({1});
  GradientReducer reducer({{"w", w}, {"v", v}, {"u", u}},
                          {.name = "seen", .op = ReduceOp::Sum, .bucket_bytes = 1 << 20});
  std::vector<std::string> calls;
  reducer.before_bucket([&](const BucketView& bucket) {
    calls.push_back("before " + bucket.name);
    EXPECT_THAT(bucket.parameters, ElementsAre("v", "w"));
    EXPECT_EQ(bucket.index, 1);
    ASSERT_EQ(bucket.flat.sizes(), at::IntArrayRef({7}));
    EXPECT_EQ(bucket.flat.sum().item<double>(), 7 * (rank() + 1));
    bucket.flat.mul_(0.5);
  });
  reducer.after_bucket([&](const BucketView& bucket) {
    calls.push_back("after " + bucket.name);
    EXPECT_DOUBLE_EQ(bucket.flat.sum().item<double>(), 7 * sum_of_ranks() / 2);
    bucket.flat.neg_();
  });
  for (int step = 0; step < 2; ++step) {
    calls.clear();
    w.mutable_grad().reset();
    v.mutable_grad().reset();
    (weighted(w, rank() + 1) + weighted(v, rank() + 1)).backward();
    reducer.synchronize();
    EXPECT_THAT(calls, ElementsAre("before seen.bucket.1", "after seen.bucket.1"));
    expect_close(w, -sum_of_ranks() / 2);
    expect_close(v, -sum_of_ranks() / 2);
  }
}

// Of which the others have none here, step after step.
TEST(ReducerScopes, AFunctionAddsToGradientsThatOtherRanksGet) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 6; ++i) parameters.push_back(leaf({3}, at::kDouble));
  DistributedOptimizer optimizer(::torch::optim::SGD(parameters, 0.1), {},
                                 {.shard_optimizer_state = true, .shard_gradients = true});
  bool throws = false;
  optimizer.before_bucket([&](const BucketView& bucket) {
    bucket.flat.add_(1);
    if (throws && rank() == 0) throw std::runtime_error("once");
  });
  for (int step = 0; step < 5; ++step) {
    throws = step == 2;  // what the others have written before does not count later
    optimizer.zero_grad();
    at::Tensor loss = weighted(parameters[0], 2);
    for (int i = 1; i < 6 && rank() == 0; ++i) loss = loss + weighted(parameters[i], 2);
    if (throws) {
      EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("once"));
      continue;
    }
    loss.backward();
    for (int i = 1; i < 6; ++i) {
      if (parameters[i].grad().defined()) expect_close(parameters[i], 2.0 / size() + 1);
    }
    optimizer.step();
  }
}

TEST(ReducerScopes, FunctionsThatThrow) {
  const at::Tensor w = leaf({3}), v = leaf({2});
  GradientReducer reducer({{"w", w}, {"v", v}}, alone());
  reducer.before_bucket([](const BucketView& bucket) {
    if (rank() == 0 && bucket.parameters[0] == "v") throw std::runtime_error("broken\nframe #0");
  });
  EXPECT_THAT(error_of([&] { (weighted(w, rank() + 1) + weighted(v, 1)).backward(); }),
              AllOf(StartsWith(kInvalid), HasSubstr("bucket.0"), HasSubstr("rank 0"),
                    HasSubstr("broken"), Not(HasSubstr("frame"))));
  expect_gradient(w, mean_of_ranks());
  EXPECT_FALSE(v.grad().defined());
  reducer.before_bucket(nullptr);
  w.mutable_grad().reset();
  reducer.after_bucket([](const BucketView&) { throw std::runtime_error("broken"); });
  EXPECT_THAT(error_of([&] { (weighted(w, rank() + 1) + weighted(v, rank() + 1)).backward(); }),
              AllOf(HasSubstr("after_bucket()"), HasSubstr("broken")));
  expect_gradient(w, mean_of_ranks());
  expect_gradient(v, mean_of_ranks());
}

// It has no part in the job, and lacks the memory in which the gradients lie.
TEST(ReducerScopes, AForkedChildIsTold) {
  const at::Tensor w = leaf({3});
  DistributedOptimizer optimizer(::torch::optim::SGD({w}, 0.5), {{"w", w}});
  const auto step = [&] {
    optimizer.zero_grad();
    weighted(w, rank() + 1).backward();
    optimizer.step();
  };
  step();
  const pid_t child = fork();
  if (child == 0) {
    int told = 0;
    const auto is_told = [&](const std::string& error) {
      told += error.find("fork") != std::string::npos ? 1 : 0;
    };
    is_told(error_of([&] { optimizer.zero_grad(/*set_to_none=*/false); }));
    is_told(error_of([&] { optimizer.step(); }));
    is_told(error_of(step));
    _exit(told == 3 ? 42 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42) << status;
  step();
  expect_gradient(w, mean_of_ranks());
}

}  // namespace
}  // namespace horon::reducer_scopes_test
