// Replicas that have gone apart are found, and others are left in peace.
#include <cmath>
#include <string>
#include <vector>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using namespace testing_support;

const auto* const environment = testing::AddGlobalTestEnvironment(new SessionEnvironment);

const std::string kMismatch{to_string(ErrorCode::Mismatch)};

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
                           HasSubstr("check_replicas"), Not(HasSubstr("\"a\""))));
  expect_gradient(a, mean_of_ranks());
  // All alike again, the job goes on.
  b.detach().fill_(1);
  step();
  optimizer.step();
  expect_value(b, 0.5);
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
  for (const double difference : {1e-6, 0.5}) {
    const at::Tensor w = leaf({3}, at::kDouble);
    w.detach().add_(difference * rank());
    GradientReducerOptions options = alone();
    if (difference > 1e-3) options.check_replicas = false;  // else: rounding, not worth an error
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
}  // namespace horon
