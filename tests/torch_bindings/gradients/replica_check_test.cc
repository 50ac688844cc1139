// Replicas that have gone apart are found, and others are left in peace.
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/nn/utils/clip_grad.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::replica_check_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using namespace testing_support;

TEST(Replicas, ThatHaveGoneApartAreNamed) {
  if (size() == 1) return;
  const at::Tensor a = leaf({3}, at::kDouble), b = leaf({4}, at::kFloat), c = leaf({2}, at::kHalf);
  auto optimizer = sgd({{"a", a}, {"b.weight", b}, {"c", c}});
  const auto step = [&] {
    optimizer.zero_grad();
    (weighted(a, rank() + 1) + weighted(b, 0.5) + weighted(c, 0.5)).backward();
  };
  step();
  if (rank() == size() - 1) b.grad().mul_(2);  // on one rank only
  optimizer.step();
  const std::string error = error_of(step);
  EXPECT_THAT(error, AllOf(StartsWith(kMismatch), HasSubstr("\"b.weight\""),
                           HasSubstr("on rank " + std::to_string(size() - 1) + " from rank 0"),
                           HasSubstr("HORON_CHECK_REPLICAS=0"), Not(HasSubstr("\"a\""))));
  expect_gradient(a, mean_of_ranks());
  // All alike again, the job goes on.
  b.detach().fill_(1);
  step();
  optimizer.step();
  expect_value(b, 0.5);
}

// Each parameter is looked at in each round, however many there are.
TEST(Replicas, OfManyParametersAreComparedInEachRound) {
  if (size() == 1) return;
  NamedTensors many;
  for (int i = 0; i < 700; ++i) many.emplace_back("p" + std::to_string(i), leaf({2}, at::kDouble));
  GradientReducer reducer(many);
  const auto round = [&] {
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const auto& [name, w] : many) {
      w.mutable_grad().reset();
      loss = loss + weighted(w, 1);
    }
    loss.backward();
    reducer.synchronize();
  };
  for (const int gone : {0, 350, 699}) {
    round();
    const at::Tensor w = many[gone].second.detach();
    if (rank() == size() - 1) w.fill_(3);
    EXPECT_THAT(error_of(round),
                AllOf(StartsWith(kMismatch), HasSubstr("\"p" + std::to_string(gone) + "\"")));
    w.fill_(1);
  }
}

// One rank freezes a parameter for a while. The other parameters are compared, and nothing is
// reported.
TEST(Replicas, ThatAreFrozenOnSomeRanksForAWhile) {
  if (size() == 1) return;
  const at::Tensor a = leaf({3}, at::kDouble), b = leaf({4}, at::kDouble);
  auto optimizer = sgd({{"a", a}, {"b", b}});
  for (int step = 0; step < 6; ++step) {
    const bool frozen = step >= 2 && rank() == size() - 1;
    a.requires_grad_(!frozen);
    const auto train_step = [&] {
      optimizer.zero_grad();
      ((frozen ? at::zeros({}, at::kDouble) : weighted(a, rank() + 1)) + weighted(b, 1)).backward();
      optimizer.step();
    };
    ASSERT_EQ(error_of(train_step), "no error") << step;
  }
  a.requires_grad_(true);
}

// Empty if there is no error.
std::string text_of_error(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const Error& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  }
}

// The number of the step in which the ranks learn that they have gone apart; 0: in none of five.
// `change` is what the program does to the gradients after backward().
int step_that_finds(
    DistributedOptimizer<::torch::optim::SGD>& optimizer, const at::Tensor& w,
    const std::function<void()>& change, const std::function<void()>& before = [] {}) {
  for (int step = 1; step <= 5; ++step) {
    const std::string error = text_of_error([&] {
      optimizer.zero_grad();
      before();
      weighted(w, rank() + 1).backward();
      change();
      optimizer.step();
    });
    if (error.empty()) continue;
    EXPECT_THAT(error, AllOf(StartsWith(kMismatch), HasSubstr("\"w\"")));
    return step;
  }
  return 0;
}

TEST(Replicas, AreComparedToTheLastBitsSoThatASmallLearningRateHidesNothing) {
  if (size() == 1) return;
  const at::Tensor w = leaf({1000}, at::kFloat);
  DistributedOptimizer optimizer(::torch::optim::SGD({w}, 1e-5), {{"w", w}}, alone());
  const int step = step_that_finds(optimizer, w, [&] {
    if (rank() == 0) w.grad().mul_(0.9);
  });
  EXPECT_EQ(step, 2);
}

TEST(Replicas, OfAProgramThatClipsWhileGradientsAreBeingReduced) {
  if (size() == 1) return;
  const at::Tensor w = leaf({1000}, at::kFloat);
  GradientReducerOptions options = alone();
  options.wait_in = WaitIn::Step;
  DistributedOptimizer optimizer(::torch::optim::SGD({w}, 1e-3), {{"w", w}}, options);
  // Rank 0 clips before the reduction, the others after it.
  const auto clip = [&] {
    if (rank() > 0) optimizer.synchronize();
    ::torch::nn::utils::clip_grad_norm_({w}, 0.1);
    if (rank() == 0) barrier();
  };
  const int step = step_that_finds(optimizer, w, clip, [] {
    if (rank() > 0) barrier();
  });
  EXPECT_EQ(step, 2);
}

// Replicas that differ only by rounding are no error. The ranks compare them less and less often,
// but they do.
TEST(Replicas, ThatDifferByRoundingAreStillCompared) {
  if (size() == 1) return;
  const at::Tensor w = leaf({300}, at::kDouble);
  w.detach().add_(1e-9 * rank());
  GradientReducer reducer({{"w", w}}, alone());
  const auto round = [&] {
    w.mutable_grad().reset();
    weighted(w, 1).backward();
    reducer.synchronize();
  };
  for (int i = 0; i < 20; ++i) round();
  if (rank() == 0) w.detach().add_(0.01);
  std::string error;
  for (int i = 0; i < 64 && error.empty(); ++i) error = text_of_error(round);
  EXPECT_THAT(error, AllOf(StartsWith(kMismatch), HasSubstr("\"w\"")));
}

// CPUs round differently, by fractions of the values that a parameter had when it was large.
TEST(Replicas, OfAParameterThatComesNearZeroMayDifferAsBefore) {
  if (size() == 1) return;
  const at::Tensor w = leaf({300}, at::kDouble), v = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, alone());
  const auto step = [&] {
    w.mutable_grad().reset();
    weighted(w, 1).backward();
    reducer.synchronize();
  };
  step();
  w.detach().fill_(1e-9 * rank());
  for (int i = 0; i < 3; ++i) step();
  if (rank() == 0) w.detach().fill_(1e-4);
  std::string error;
  for (int i = 0; i < 8 && error.empty(); ++i) error = text_of_error(step);
  EXPECT_THAT(error, AllOf(StartsWith(kMismatch), HasSubstr("\"w\"")));
}

// As many rounds as before may have rounded them.
TEST(Replicas, MayDifferAsBeforeAfterARoundThatWasGivenUp) {
  const at::Tensor w = leaf({300}, at::kDouble), v = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, alone());
  const auto round = [&] {
    w.mutable_grad().reset();
    weighted(w, 1).backward();
    reducer.synchronize();
  };
  for (int i = 0; i < 400; ++i) round();
  if (rank() == 0) w.detach().add_(std::ldexp(40, -23));
  w.mutable_grad().reset();
  const at::Tensor hidden = w * 1;
  if (rank() == 0) {
    hidden.register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("on purpose"); });
  }
  EXPECT_ANY_THROW((hidden.sum() + weighted(v, 1)).backward());  // which comes to v first
  EXPECT_EQ(error_of(round), "no error");
}

// Ranks that have missed rounds in a join() go on to compare the same elements.
TEST(Replicas, AreComparedAlikeAfterAJoin) {
  const at::Tensor w = at::arange(100, at::kDouble).requires_grad_(true);
  GradientReducer reducer({{"w", w}}, alone());
  const auto step = [&] {
    w.mutable_grad().reset();
    weighted(w, 1).backward();
    reducer.synchronize();
  };
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int i = 0; i < 3 + rank(); ++i) step();
    (void)join();
    for (int i = 0; i < 3; ++i) step();
  }
  if (size() == 1) return;
  if (rank() == 0) w.detach().add_(1);
  EXPECT_THAT(error_of(step), AllOf(StartsWith(kMismatch), HasSubstr("\"w\"")));
}

TEST(Replicas, AreNotComparedWhereTheProgramSaysSo) {
  for (const double difference : {1e-7, 0.5}) {
    const at::Tensor w = leaf({3}, at::kDouble);
    w.detach().add_(difference * rank());
    GradientReducerOptions options = alone();
    if (difference > 0.1) options.check_replicas = false;  // else: rounding, not worth an error
    GradientReducer reducer({{"w", w}}, options);
    for (int step = 0; step < 3; ++step) {
      w.mutable_grad().reset();
      weighted(w, rank() + 1).backward();
      expect_gradient(w, mean_of_ranks());
      reducer.synchronize();
    }
  }
}

TEST(Replicas, NumbersThatAreNotFinite) {
  const at::Tensor w = leaf({3}, at::kDouble);
  w.detach().fill_(NAN);
  GradientReducer reducer({{"w", w}}, alone());
  weighted(w, 1).backward();  // NaN everywhere is no difference
  reducer.synchronize();
  if (size() == 1) return;
  if (rank() == 0) w.detach().fill_(1);
  EXPECT_THAT(error_of([&] { weighted(w, 1).backward(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("\"w\"")));
}

}  // namespace
}  // namespace horon::replica_check_test
