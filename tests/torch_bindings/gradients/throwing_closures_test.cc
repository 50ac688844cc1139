// Closures of step(closure) that throw: on one rank or on all, before, between and behind their
// backward passes. Nobody waits for ever, and the next step is right.
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "horon/ops/session/process_set.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::throwing_closures_test {
namespace {

namespace optim = ::torch::optim;
using testing::HasSubstr;
using namespace testing_support;

// The others wait for its loss. Afterwards all make the next step together.
TEST(ThrowingClosures, AClosureThatThrowsOnOneRankKeepsNobodyWaiting) {
  if (size() == 1) return;
  for (const bool in_function : {false, true}) {
    for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
      const at::Tensor w = leaf({2});
      DistributedOptimizer optimizer(optim::SGD({w}, 0.5), {{"w", w}}, {.op = op});
      int evaluations = 0;
      const auto step = [&](bool throws) {
        throws = throws && rank() == size() - 1;
        optimizer.after_bucket([throws, in_function](const BucketView&) {
          if (throws && in_function) throw Error(ErrorCode::OperationFailed, "no more of it");
        });
        return optimizer.step([&] {
          ++evaluations;
          optimizer.zero_grad();
          const at::Tensor loss = w[0] * (rank() + 1);
          loss.backward();
          if (throws) throw Error(ErrorCode::OperationFailed, "no more of it");
          return loss;
        });
      };
      EXPECT_THAT(error_of([&] { step(true); }), HasSubstr("no more of it"));
      EXPECT_EQ(w[0].item<double>(), 1);
      const double of_all = op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks();
      EXPECT_NEAR(step(false).item<double>(), of_all, 1e-6);
      EXPECT_NEAR(w[0].item<double>(), 1 - 0.5 * of_all, 1e-6);
      EXPECT_EQ(evaluations, 2);
    }
  }
}

// The others wait for its gradients.
TEST(ThrowingClosures, AClosureThatThrowsBeforeItsGradientsAreReducedKeepsNobodyWaiting) {
  if (size() == 1) return;
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    for (const bool before_backward : {false, true}) {
      if (wait_in == WaitIn::Backward && !before_backward) continue;  // then they are reduced
      const at::Tensor w = leaf({2}), v = leaf({30});
      DistributedOptimizer optimizer(
          optim::SGD({w, v}, 0.5), {{"w", w}, {"v", v}},
          {.bucket_bytes = 1, .first_bucket_bytes = 1, .wait_in = wait_in});
      const auto step = [&](bool throws) {
        throws = throws && rank() == size() - 1;
        return optimizer.step([&] {
          optimizer.zero_grad();
          const at::Tensor loss = w[0] * (rank() + 1) + v.sum() * 0;
          if (throws && before_backward) throw Error(ErrorCode::OperationFailed, "no data");
          loss.backward();
          if (throws) throw Error(ErrorCode::OperationFailed, "no data");
          return loss;
        });
      };
      const bool is_last = rank() == size() - 1;
      for (int i = 0; i < 2; ++i) {
        EXPECT_THAT(
            error_of([&] { step(true); }),
            HasSubstr(is_last ? "no data" : "on rank " + std::to_string(size() - 1) + " ended"));
        EXPECT_EQ(w[0].item<double>(), 1 - 0.5 * i * mean_of_ranks());
        const double before = w[0].item<double>();
        EXPECT_NEAR(step(false).item<double>(), mean_of_ranks() * before, 1e-6);
        EXPECT_NEAR(w[0].item<double>(), 1 - 0.5 * (i + 1) * mean_of_ranks(), 1e-6);
      }
    }
  }
}

// All of them throw: nobody waits, and nothing of it is left.
TEST(ThrowingClosures, AClosureThatThrowsOnAllRanksLeavesTheNextStepRight) {
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::LBFGS({w}, optim::LBFGSOptions(1)), {{"w", w}});
  const auto step = [&](bool throws) {
    return optimizer.step([&] {
      optimizer.zero_grad();
      const at::Tensor loss = (w - rank()).square().sum();
      loss.backward();
      if (throws) throw Error(ErrorCode::OperationFailed, "not yet");
      return loss;
    });
  };
  for (int i = 0; i < 2; ++i) EXPECT_THAT(error_of([&] { step(true); }), HasSubstr("not yet"));
  step(false);
  EXPECT_TRUE(at::allclose(w, at::full({2}, (size() - 1) / 2.0F)));
}

// A GAN, say: the second closure throws while the first optimizer's round is still given up.
TEST(ThrowingClosures, ClosuresThatThrowOneAfterTheOtherKeepNobodyWaiting) {
  if (size() == 1) return;
  const bool is_last = rank() == size() - 1;
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    const at::Tensor w = leaf({2}), v = leaf({3});
    DistributedOptimizer first(optim::SGD({w}, 0.5), {{"w", w}}, {.wait_in = wait_in});
    DistributedOptimizer second(optim::SGD({v}, 0.5), {{"v", v}}, {.wait_in = wait_in});
    enum class Throws : uint8_t { No, Before, After };
    const auto step = [&](auto& optimizer, const at::Tensor& x, Throws throws) {
      return error_of([&] {
        optimizer.step([&] {
          optimizer.zero_grad();
          const at::Tensor loss = (x * (rank() + 1)).sum();
          if (is_last && throws == Throws::Before)
            throw Error(ErrorCode::OperationFailed, "no data");
          loss.backward();
          if (is_last && throws == Throws::After)
            throw Error(ErrorCode::OperationFailed, "no data");
          return loss;
        });
      });
    };
    const std::string told = is_last ? "no data" : "rank " + std::to_string(size() - 1);
    for (const Throws again : {Throws::Before, Throws::After}) {
      EXPECT_THAT(step(first, w, Throws::Before), HasSubstr(told));
      EXPECT_THAT(step(second, v, Throws::Before), HasSubstr(told));
      EXPECT_THAT(step(first, w, again), HasSubstr(told));
      EXPECT_THAT(step(second, v, Throws::After), HasSubstr(told));
    }
    EXPECT_TRUE(w.equal(at::ones({2})));
    EXPECT_TRUE(v.equal(at::ones({3})));
    EXPECT_EQ(step(first, w, Throws::No), "no error");
    EXPECT_EQ(step(second, v, Throws::No), "no error");
    expect_gradient(w, mean_of_ranks());
    EXPECT_NEAR(v[0].item<double>(), 1 - 0.5 * mean_of_ranks(), 1e-6);
    // A step without a closure, and on this rank without a gradient, begins anew too.
    EXPECT_THAT(step(first, w, Throws::Before), HasSubstr(told));
    first.zero_grad();
    if (!is_last) (w * 2).sum().backward();
    EXPECT_EQ(error_of([&] { first.step(); }), "no error");
    expect_gradient(w, 2.0 * (size() - 1) / size());
  }
}

TEST(ThrowingClosures, AClosureThatThrowsBetweenTwoBackwardsKeepsNobodyWaiting) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.5), {{"w", w}});
  const auto step = [&](bool throws) {
    return error_of([&] {
      optimizer.step([&] {
        optimizer.zero_grad();
        (w * (rank() + 1)).sum().backward();
        if (throws && rank() == 0) throw Error(ErrorCode::OperationFailed, "no data");
        const at::Tensor loss = w.sum() * 2;
        loss.backward();
        return loss;
      });
    });
  };
  EXPECT_EQ(step(false), "no error");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(step(true), HasSubstr(rank() == 0 ? "no data" : "rank 0"));
    EXPECT_EQ(step(false), "no error");
    expect_gradient(w, mean_of_ranks() + 2);
  }
}

// It has ended its step by itself.
TEST(ThrowingClosures, BehindASynchronizeOfItsOwn) {
  if (size() == 1) return;
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    const at::Tensor w = leaf({2});
    DistributedOptimizer optimizer(optim::SGD({w}, 0.5), {{"w", w}}, {.wait_in = wait_in});
    const auto step = [&](bool throws) {
      return error_of([&] {
        optimizer.step([&] {
          optimizer.zero_grad();
          const at::Tensor loss = (w * (rank() + 1)).sum();
          loss.backward();
          optimizer.synchronize();
          if (throws && rank() == 0) throw Error(ErrorCode::OperationFailed, "no data");
          return loss;
        });
      });
    };
    EXPECT_EQ(step(false), "no error");
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(step(true), HasSubstr("no data"));
      EXPECT_EQ(step(false), "no error");
      expect_gradient(w, mean_of_ranks());
    }
  }
}

// What was submitted before is of a step that is over.
TEST(ThrowingClosures, BehindAJoin) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.5), {{"w", w}}, {.wait_in = WaitIn::Step});
  (w * 3).sum().backward();
  join();
  for (const bool throws : {true, true, false}) {
    const std::string error = error_of([&] {
      optimizer.step([&] {
        if (throws && rank() == 0) throw Error(ErrorCode::OperationFailed, "no data");
        optimizer.zero_grad();
        const at::Tensor loss = (w * (rank() + 1)).sum();
        loss.backward();
        return loss;
      });
    });
    EXPECT_THAT(error, HasSubstr(!throws ? "no error" : rank() == 0 ? "no data" : "rank 0"));
  }
  expect_gradient(w, mean_of_ranks());
}

// It reduces with nobody.
TEST(ThrowingClosures, OfARankAlone) {
  std::vector<ProcessSet> sets;
  for (int r = 0; r < size(); ++r) sets.push_back(add_process_set({r}));
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.5), {{"w", w}},
                                 {.process_set = sets[static_cast<size_t>(rank())]});
  for (const bool throws : {false, true, false}) {
    const std::string error = error_of([&] {
      optimizer.step([&] {
        optimizer.zero_grad();
        w.sum().backward();
        if (throws) throw Error(ErrorCode::OperationFailed, "no data");
        const at::Tensor loss = w.sum();
        loss.backward();
        return loss;
      });
    });
    EXPECT_THAT(error, HasSubstr(throws ? "no data" : "no error"));
    optimizer.set_backward_passes_per_step(1);  // between two steps
  }
  EXPECT_TRUE(w.equal(at::full({2}, -1.0F)));
  for (const ProcessSet& set : sets) remove_process_set(set);
}

// LBFGS, which calls the closure by itself.
TEST(ThrowingClosures, TheWeightsOfAStepThatWasGivenUpAreGone) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::LBFGS({w}, optim::LBFGSOptions(0.1).max_iter(2)),
                                 {{"w", w}});
  for (const int step : {0, 1, 2}) {
    if (step < 2) optimizer.set_weight(rank() + 1);
    const std::string error = error_of([&] {
      optimizer.step([&] {
        if (step == 1 && rank() == 0) throw Error(ErrorCode::OperationFailed, "no data");
        optimizer.zero_grad();
        const at::Tensor loss = w.square().sum();
        loss.backward();
        return loss;
      });
    });
    EXPECT_THAT(error, HasSubstr(step != 1 ? "no error" : rank() == 0 ? "no data" : "rank 0"));
  }
}

// Nobody waits for a rank that is not in the set.
TEST(ThrowingClosures, AClosureThatThrowsOutsideOfTheSet) {
  const ProcessSet first = add_process_set({0});
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.5), {{"w", w}}, {.process_set = first});
  for (const bool throws : {true, false}) {
    const std::string error = error_of([&] {
      optimizer.step([&] {
        optimizer.zero_grad();
        if (throws) throw Error(ErrorCode::OperationFailed, "no data");
        const at::Tensor loss = w.sum();
        loss.backward();
        return loss;
      });
    });
    EXPECT_THAT(error, HasSubstr(throws ? "no data" : "no error"));
  }
  EXPECT_TRUE(w.equal(at::full({2}, 0.5F)));
  remove_process_set(first);
}

TEST(ThrowingClosures, AStepWithAClosureIsNotTheOneThatWasLeftOut) {
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::LBFGS({w}, optim::LBFGSOptions(0.5)), {{"w", w}});
  amp::GradScaler scaler({.init_scale = 4});
  scaler.scale(w.sum() * std::numeric_limits<double>::infinity()).backward();
  EXPECT_FALSE(scaler.step(optimizer));
  EXPECT_TRUE(optimizer.step_skipped());
  optimizer.step([&] {
    optimizer.zero_grad();
    const at::Tensor loss = w.square().sum();
    loss.backward();
    return loss;
  });
  EXPECT_FALSE(optimizer.step_skipped());
}

}  // namespace
}  // namespace horon::throwing_closures_test
