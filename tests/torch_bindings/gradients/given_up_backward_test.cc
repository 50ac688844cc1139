// A backward() that ends by an exception on one rank: the others must not wait for it, nor take its
// next one for this one.
#include <exception>
#include <stdexcept>
#include <string>

#include "horon/tests/torch_bindings/gradients/backward_support.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::given_up_backward_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

// Of Horon and of the program.
template <class Call>
std::string any_error_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Backward comes to `late` first, and then may throw.
at::Tensor loss(const at::Tensor& early, const at::Tensor& late, double x, bool fails) {
  const at::Tensor hidden = early * x;
  if (fails) {
    hidden.register_hook([](const at::Tensor& gradient) -> at::Tensor {
      throw std::runtime_error("the program's own");
      return gradient;
    });
  }
  return hidden.sum() + weighted(late, x);
}

class GivenUpBackward : public testing::Test {
 protected:
  void clear() const {
    early.mutable_grad().reset();
    late.mutable_grad().reset();
  }
  void expect_means(double factor) const {
    expect_gradient(early, factor * mean_of_ranks());
    expect_gradient(late, factor * mean_of_ranks());
  }
  // Of this rank: its own exception, or what it is told.
  static void expect_told(const std::string& error, bool failed_here) {
    if (failed_here) {
      EXPECT_THAT(error, HasSubstr("the program's own"));
    } else {
      EXPECT_THAT(error, AllOf(HasSubstr("backward() on rank 0 has ended by an exception"),
                               HasSubstr("gradients.")));
    }
  }
  const at::Tensor early = leaf({2}), late = leaf({3});
};

TEST_F(GivenUpBackward, TheOthersAreToldInThatStepAndTheNextOneIsRight) {
  GradientReducer reducer({{"early", early}, {"late", late}}, alone());
  for (int step = 1; step <= 6; ++step) {
    clear();
    const bool fails = rank() == 0 && step % 2 == 1;
    const std::string error =
        any_error_of([&] { loss(early, late, step * (rank() + 1), fails).backward(); });
    if (step % 2 == 1) {
      expect_told(error, fails);
    } else {
      EXPECT_EQ(error, "no error");
      expect_means(step);
    }
    // Who waited for the other ranks' gradients here would wait for ever.
    (void)allreduce(at::ones({1}), {.name = "metric"});
  }
}

TEST_F(GivenUpBackward, AllOfThemAtOnce) {
  GradientReducer reducer({{"early", early}, {"late", late}}, alone());
  for (int step = 1; step <= 4; ++step) {
    clear();
    const std::string error =
        any_error_of([&] { loss(early, late, step * (rank() + 1), step < 3).backward(); });
    EXPECT_EQ(error != "no error", step < 3);
    if (step >= 3) expect_means(step);
  }
}

TEST_F(GivenUpBackward, WhereTheStepReduces) {
  GradientReducer reducer({{"early", early}, {"late", late}}, in_flight());
  for (int step = 1; step <= 4; ++step) {
    clear();
    const bool fails = rank() == 0 && step == 2;
    const std::string error = any_error_of([&] {
      loss(early, late, step * (rank() + 1), fails).backward();
      reducer.synchronize();
    });
    if (step == 2) {
      expect_told(error, fails);
    } else {
      EXPECT_EQ(error, "no error");
      expect_means(step);
    }
  }
}

TEST_F(GivenUpBackward, InTheFirstOfTwoPasses) {
  GradientReducerOptions options = alone(ReduceOp::Sum);
  options.backward_passes_per_step = 2;
  GradientReducer reducer({{"early", early}, {"late", late}}, options);
  for (int step = 1; step <= 3; ++step) {
    clear();
    const bool fails = rank() == 0 && step == 2;
    const std::string error = any_error_of([&] {
      loss(early, late, rank() + 1, fails).backward();
      loss(early, late, step * (rank() + 1), false).backward();
    });
    if (step == 2) {
      expect_told(error, fails);
    } else {
      EXPECT_EQ(error, "no error");
      expect_gradient(early, (1 + step) * sum_of_ranks());
      expect_gradient(late, (1 + step) * sum_of_ranks());
    }
  }
}

TEST_F(GivenUpBackward, SettingsOfTheNextStepMayFollow) {
  GradientReducer reducer({{"early", early}, {"late", late}}, alone());
  for (int step = 1; step <= 3; ++step) {
    clear();
    reducer.set_weight(step);
    const bool fails = rank() == 0 && step == 2;
    const std::string error =
        any_error_of([&] { loss(early, late, step * (rank() + 1), fails).backward(); });
    if (step == 2) {
      expect_told(error, fails);
    } else {
      expect_means(step);
    }
  }
}

// The step has no gradients then, on no rank.
TEST_F(GivenUpBackward, SynchronizeAfterwardsWaitsForAllRanks) {
  GradientReducer reducer({{"early", early}, {"late", late}}, alone());
  expect_told(any_error_of([&] { loss(early, late, 1, rank() == 0).backward(); }), rank() == 0);
  reducer.synchronize();
  EXPECT_FALSE(early.grad().defined());
  EXPECT_FALSE(late.grad().defined());
  loss(early, late, rank() + 1, false).backward();
  expect_means(1);
}

TEST_F(GivenUpBackward, SeveralReducersInOnePass) {
  GradientReducer of_late({{"late", late}}, alone());
  const at::Tensor last = leaf({4});
  GradientReducer of_others({{"early", early}, {"last", last}}, alone());
  for (int step = 1; step <= 3; ++step) {
    clear();
    last.mutable_grad().reset();
    const bool fails = rank() == 0 && step == 2;
    const std::string error = any_error_of([&] {
      const double x = step * (rank() + 1);
      const at::Tensor of_two = loss(early, late, x, fails);
      (of_two + weighted(last, x)).backward();  // `last` has its gradient first
    });
    if (step == 2) {
      expect_told(error, fails);
    } else {
      EXPECT_EQ(error, "no error");
      expect_means(step);
      expect_gradient(last, step * mean_of_ranks());
    }
  }
}

TEST_F(GivenUpBackward, WhereNothingIsReducedTheOthersHearNothing) {
  GradientReducer reducer({{"early", early}, {"late", late}}, alone());
  {
    const auto scope = reducer.no_sync();
    const std::string error =
        any_error_of([&] { loss(early, late, rank() + 1, rank() == 0).backward(); });
    EXPECT_EQ(error != "no error", rank() == 0);
  }
  clear();
  loss(early, late, rank() + 1, false).backward();
  expect_means(1);
}

// Nothing of a reducer that is gone is used, and the collectives of its next one are its own.
TEST_F(GivenUpBackward, TheReducerMayEndThen) {
  for (int round = 0; round < 3; ++round) {
    clear();
    GradientReducer reducer({{"early", early}, {"late", late}}, alone());
    expect_told(any_error_of([&] { loss(early, late, 1, rank() == 0).backward(); }), rank() == 0);
  }
}

}  // namespace
}  // namespace horon::given_up_backward_test
