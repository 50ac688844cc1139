// When backward() returns, gradients are reduced, whatever the program does with them next.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/utils/clip_grad.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/backward_support.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::backward_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

TEST(Backward, GradientsAreReducedWhenItReturns) {
  const at::Tensor a = leaf({3}), b = leaf({2, 2});
  for (const int64_t bytes : {1, 1 << 20}) {
    GradientReducer reducer({{"a", a}, {"b", b}},
                            {.bucket_bytes = bytes, .first_bucket_bytes = bytes});
    for (int step = 0; step < 3; ++step) {
      a.mutable_grad().reset();
      b.mutable_grad().reset();
      (weighted(a, rank() + 1) + weighted(b, 1)).backward();
      expect_gradient(a, mean_of_ranks());
      expect_gradient(b, 1);
      reducer.synchronize();
      expect_gradient(a, mean_of_ranks());
    }
    EXPECT_EQ(reducer.statistics().steps, 3);
  }
}

// The loop of everybody who comes from DDP.
TEST(Backward, ClippingByNormNeedsNoCall) {
  const at::Tensor a = leaf({3}, at::kDouble), b = leaf({4}, at::kDouble);
  auto optimizer = sgd({{"a", a}, {"b", b}});
  double want_a = 1, want_b = 1;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    (weighted(a, rank() + 1) + weighted(b, 2 * rank() + 2)).backward();
    const double norm = mean_of_ranks() * std::sqrt(3 + 4 * 4.0);
    const double before = ::torch::nn::utils::clip_grad_norm_({a, b}, 1e-3);
    EXPECT_NEAR(before, norm, 1e-9);
    optimizer.step();
    const double factor = 1e-3 / (norm + 1e-6);
    want_a -= mean_of_ranks() * factor;
    want_b -= 2 * mean_of_ranks() * factor;
    expect_value(a, want_a);
    expect_value(b, want_b);
  }
}

TEST(Backward, TwoPassesWithClippingInBetween) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    const double once = op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks();
    const at::Tensor w = leaf({3}, at::kDouble);
    auto optimizer = sgd({{"w", w}}, alone(op));
    double want = 1;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      weighted(w, 100.0 * (rank() + 1)).backward();
      ::torch::nn::utils::clip_grad_value_({w}, 0.5);
      expect_gradient(w, 0.5);
      weighted(w, rank() + 1).backward();  // adds to what has been reduced and clipped
      expect_gradient(w, 0.5 + once);
      w.grad().mul_(0.25);
      optimizer.step();
      want -= (0.5 + once) / 4;
      expect_value(w, want);
    }
    EXPECT_EQ(optimizer.statistics().late_parts, 0);
  }
}

TEST(Backward, APlainOptimizerNeedsNothingElse) {
  const at::Tensor w = leaf({3}, at::kDouble);
  const GradientReducer reducer({{"w", w}});
  ::torch::optim::SGD optimizer({w}, 1.0);
  for (int step = 1; step <= 3; ++step) {
    optimizer.zero_grad();
    weighted(w, rank() + 1).backward();
    optimizer.step();
    expect_value(w, 1 - step * mean_of_ranks());
  }
}

// The reduced gradient has no graph. A program that needs one has two ways, and is told so.
TEST(Backward, AGradientWithAGraphIsKeptByNoSync) {
  if (size() == 1) return;
  const at::Tensor w = leaf({4}, at::kDouble);
  auto optimizer = sgd({{"w", w}});
  const double c = rank() + 1;
  const auto loss = [&] { return w.square().sum() * (c / 2); };
  testing::internal::CaptureStderr();
  loss().backward({}, true, true);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, AllOf(HasSubstr("gradient of \"w\""), HasSubstr("no_sync()")));
  EXPECT_FALSE(w.grad().requires_grad());
  optimizer.zero_grad();
  {
    const auto quiet = optimizer.no_sync();
    loss().backward({}, true, true);
  }
  ASSERT_TRUE(w.grad().requires_grad());
  (w.grad().square().sum() / 2).backward();
  double want = 0;
  for (int r = 1; r <= size(); ++r) want += (r + r * r) / static_cast<double>(size());
  expect_gradient(w, want);
  EXPECT_FALSE(w.grad().requires_grad());
}

TEST(Backward, RanksWithoutABackwardTakePartInStep) {
  const at::Tensor a = leaf({3}, at::kDouble), b = leaf({2}, at::kDouble);
  auto optimizer = sgd({{"a", a}, {"b", b}});
  for (int step = 1; step <= 4; ++step) {
    optimizer.zero_grad();
    const int active = step % size();
    if (rank() == active) (weighted(a, size()) + weighted(b, size())).backward();
    optimizer.step();
    expect_value(a, 1 - step);
    expect_value(b, 1 - step);
  }
}

// LibTorch throws where the reducer takes the gradient over; the other ranks hear of it and go on.
TEST(Backward, AGradientThatCantBeCopiedIsTheErrorOfAllRanks) {
  if (size() == 1) return;
  const at::Tensor w = leaf({3});
  auto optimizer = sgd({{"w", w}});
  bool failed = false;
  try {
    if (rank() == 0) {
      w.mutable_grad() = at::empty({3}, at::TensorOptions(at::kMeta));
    } else {
      weighted(w, 1).backward();
    }
    optimizer.step();
  } catch (const std::exception& error) {
    failed = true;
    // LibTorch's backtrace stays on the rank where it was made.
    const bool one_line = std::string(error.what()).find('\n') == std::string::npos;
    EXPECT_TRUE(rank() == 0 || one_line) << error.what();
  }
  EXPECT_TRUE(failed);
  expect_value(w, 1);
  optimizer.zero_grad();
  weighted(w, 1).backward();
  optimizer.step();
  expect_value(w, 0);
}

TEST(Backward, RanksThatRunItMoreOftenAreNamed) {
  if (size() == 1) return;
  const at::Tensor w = leaf({3});
  auto optimizer = sgd({{"w", w}}, {.name = "uneven"});
  const std::string error = error_of([&] {
    for (int step = 1; step <= 2; ++step) {
      optimizer.zero_grad();
      weighted(w, 1).backward();
      if (rank() == 0 && step == 1) weighted(w, 1).backward();
      optimizer.step();
    }
  });
  EXPECT_THAT(error, AllOf(StartsWith(kMismatch), HasSubstr("\"uneven\""),
                           HasSubstr("rank 0 in backward 2 of step 1"),
                           HasSubstr("in backward 1 of step 2")));
  EXPECT_FALSE(w.grad().defined());
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("parameter \"w\" differs"));
  broadcast_parameters({{"w", w}}, 0);
  for (int step = 1; step <= 3; ++step) {
    optimizer.zero_grad();
    weighted(w, rank() + 1).backward();
    expect_gradient(w, mean_of_ranks());
    optimizer.step();
  }
}

TEST(Backward, NoSyncAndSeveralPasses) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  for (int step = 1; step <= 3; ++step) {
    w.mutable_grad().reset();
    {
      const auto quiet = reducer.no_sync();
      weighted(w, rank() + 1).backward();
      expect_gradient(w, rank() + 1);  // this rank's own
    }
    weighted(w, rank() + 1).backward();
    expect_gradient(w, 2 * mean_of_ranks());
    reducer.synchronize();
  }
  EXPECT_EQ(reducer.statistics().steps, 3);

  reducer.set_backward_passes_per_step(2);
  w.mutable_grad().reset();
  weighted(w, rank() + 1).backward();
  expect_gradient(w, rank() + 1);
  EXPECT_THAT(error_of([&] { reducer.set_backward_passes_per_step(3); }),
              AllOf(StartsWith(kInvalid), HasSubstr("in the middle of a step")));
  weighted(w, rank() + 1).backward();
  expect_gradient(w, 2 * mean_of_ranks());
  reducer.synchronize(GradientReducer::Passes::All);
  EXPECT_EQ(reducer.statistics().steps, 4);
  EXPECT_THAT(error_of([&] { reducer.set_backward_passes_per_step(0); }), StartsWith(kInvalid));
}

TEST(Backward, WeightsHoldForAllPassesOfAStep) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  double weights = 0, sum = 0;
  for (int r = 0; r < size(); ++r) {
    weights += r + 1;
    sum += (r + 1.0) * (r + 1);
  }
  for (int step = 1; step <= 2; ++step) {
    w.mutable_grad().reset();
    reducer.set_weight(rank() + 1);
    weighted(w, rank() + 1).backward();
    expect_gradient(w, sum / weights);
    weighted(w, 2 * rank() + 2).backward();
    expect_gradient(w, 3 * sum / weights);
    reducer.synchronize();
  }
  w.mutable_grad().reset();
  weighted(w, rank() + 1).backward();  // no weights in this step
  expect_gradient(w, mean_of_ranks());
}

// A gradient that one rank can't submit is an error on all ranks, in the same round.
TEST(Backward, OneRankWritesInFlight) {
  const at::Tensor w = leaf({3}, at::kDouble);
  auto optimizer = sgd({{"weight", w}}, in_flight());
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    weighted(w, 1).backward();
    if (rank() == size() - 1) w.grad().mul_(2);
    const std::string who = "rank " + std::to_string(size() - 1);
    const std::string error = error_of([&] { optimizer.step(); });
    EXPECT_THAT(error, StartsWith(kInvalid));
    EXPECT_THAT(error, HasSubstr(rank() == size() - 1 ? "\"weight\"" : who));
    expect_value(w, 1);
  }
  optimizer.zero_grad();
  weighted(w, rank() + 1).backward();
  optimizer.step();
  expect_value(w, 1 - mean_of_ranks());
}

// The group is added after the other ranks have run the round of the step in backward().
TEST(Backward, AddedGroupAndARankWithoutABackward) {
  namespace optim = ::torch::optim;
  const at::Tensor w = leaf({3}, at::kDouble), head = leaf({2}, at::kDouble);
  auto optimizer = sgd({{"w", w}});
  for (int step = 1; step <= 3; ++step) {
    if (step == 2) {
      optimizer.add_param_group(
          optim::OptimizerParamGroup({head}, std::make_unique<optim::SGDOptions>(1.0)));
    }
    optimizer.zero_grad();
    if (rank() == 0) (weighted(w, size()) + weighted(head, size())).backward();
    optimizer.step();
    expect_value(w, 1 - step);
  }
  expect_value(head, -1);
}

// An undefined gradient comes to a parameter whose .grad holds the sum of an earlier pass.
TEST(Backward, UndefinedGradientLeavesTheSumAlone) {
  const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, alone(ReduceOp::Sum));
  weighted(w, rank() + 1).backward();
  NoGradient::apply(w).backward();
  expect_gradient(w, sum_of_ranks());
  (NoGradient::apply(w) + weighted(v, 1)).backward();
  expect_gradient(w, sum_of_ranks());
  expect_gradient(v, size());
  reducer.synchronize();
  expect_gradient(w, sum_of_ranks());
}

TEST(Backward, AFunctionThatThrowsOnOneRankKeepsNobodyBack) {
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    const at::Tensor w = leaf({3}, at::kDouble);
    auto optimizer = sgd({{"w", w}}, alone(ReduceOp::Average, wait_in));
    bool throws = rank() == size() - 1;
    optimizer.after_bucket([&](const BucketView&) {
      if (std::exchange(throws, false)) throw 5;
    });
    const auto backward = [&] {
      optimizer.zero_grad();
      weighted(w, rank() + 1).backward();
    };
    if (wait_in == WaitIn::Step) {
      backward();
      if (rank() < size() - 1) {
        optimizer.step();
      } else {
        EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("after_bucket()"));
        w.detach().sub_(mean_of_ranks());
      }
    } else {
      if (rank() < size() - 1) {
        backward();
      } else {
        EXPECT_THAT(error_of(backward), HasSubstr("after_bucket()"));
      }
      optimizer.step();
    }
    backward();
    optimizer.step();
    expect_value(w, 1 - 2 * mean_of_ranks());
  }
}

// An optimizer that the program holds as the base class, or as a pointer.
TEST(Backward, OptimizersOfUnknownType) {
  namespace optim = ::torch::optim;
  for (const bool owned : {false, true}) {
    const at::Tensor w = leaf({3}, at::kDouble);
    auto held = std::make_unique<optim::SGD>(std::vector<at::Tensor>{w}, 1.0);
    optim::SGD& sgd_of_program = *held;
    const auto train = [&](auto& optimizer) {
      for (int step = 1; step <= 2; ++step) {
        optimizer.zero_grad(step == 1);
        weighted(w, rank() + 1).backward();
        optimizer.step();
        expect_value(w, 1 - step * mean_of_ranks());
      }
      optimizer.step([&] {
        optimizer.zero_grad();
        const at::Tensor loss = weighted(w, rank() + 1);
        loss.backward();
        return loss;
      });
      expect_value(w, 1 - 3 * mean_of_ranks());
      EXPECT_EQ(&optimizer.optimizer(), &sgd_of_program);
      static_cast<optim::SGDOptions&>(sgd_of_program.defaults()).lr(1);
      EXPECT_EQ(optimizer.statistics().steps, 3);
    };
    if (owned) {
      DistributedOptimizer optimizer(std::move(held), {{"w", w}}, {.name = "owned"});
      train(optimizer);
    } else {
      DistributedOptimizer optimizer(static_cast<optim::Optimizer&>(*held), {{"w", w}});
      train(optimizer);
    }
  }
  EXPECT_THAT(
      error_of([] { DistributedOptimizer optimizer(std::unique_ptr<optim::Optimizer>(), {}); }),
      AllOf(StartsWith(kInvalid), HasSubstr("null")));
}

// In a later step some ranks have no gradient for w: the result is made of the other ranks'.
TEST(Backward, ProgramChangesTheTensorOfAGradientThatSomeRanksLackLater) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  const at::Tensor w = leaf({3}), v = leaf({3});
  GradientReducer reducer({{"w", w}, {"v", v}}, in_flight());
  for (int step = 0; step < 3; ++step) {
    (weighted(w, rank() + 1) + weighted(v, 1)).backward();
    reducer.synchronize();
    expect_gradient(w, mean_of_ranks());
    const at::Tensor changed = w.grad();
    changed.set_data(at::full({3}, 100));
    w.mutable_grad().reset();
    v.mutable_grad().reset();
    (rank() == 0 ? weighted(v, 1) : weighted(v, 1) + weighted(w, size())).backward();
    reducer.synchronize();
    expect_gradient(w, size() - 1);
    EXPECT_EQ(changed[0].item<double>(), 100) << "the program's tensor was overwritten";
    w.mutable_grad().reset();
    v.mutable_grad().reset();
  }
}

}  // namespace
}  // namespace horon::backward_test
