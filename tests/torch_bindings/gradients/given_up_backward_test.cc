// A backward() that ends by an exception on one rank: the other ranks must not wait for it, nor
// take that rank's next backward() for this one.
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "horon/tests/torch_bindings/gradients/backward_support.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::given_up_backward_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

// Catches errors of Horon and of the program.
template <class Call>
std::string any_error_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void fail_in_backward(const at::Tensor& hidden) {
  hidden.register_hook([](const at::Tensor& gradient) -> at::Tensor {
    throw std::runtime_error("the program's own");
    return gradient;
  });
}

// Backward comes to `late` first, and then may throw.
at::Tensor loss(const at::Tensor& early, const at::Tensor& late, double x, bool fails) {
  const at::Tensor hidden = early * x;
  if (fails) fail_in_backward(hidden);
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
  // `error` is what this rank got: its own exception, or what it is told of rank 0's.
  static void expect_told(const std::string& error, bool failed_here) {
    if (failed_here) {
      EXPECT_THAT(error, HasSubstr("the program's own"));
    } else {
      EXPECT_THAT(error, AllOf(HasSubstr("backward() on rank 0 ended with an exception"),
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
    // A rank that waited for the other ranks' gradients here would wait for ever.
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

// The program calls backward() and the step apart from each other.
TEST_F(GivenUpBackward, TheStepOfTheRankThrowsToo) {
  GradientReducer reducer({{"early", early}, {"late", late}}, in_flight());
  for (int step = 1; step <= 4; ++step) {
    clear();
    const bool fails = rank() == 0 && step == 2;
    const std::string of_backward =
        any_error_of([&] { loss(early, late, step * (rank() + 1), fails).backward(); });
    EXPECT_EQ(of_backward != "no error", fails);
    const std::string of_step = any_error_of([&] { reducer.synchronize(); });
    if (step == 2) {
      expect_told(of_step, false);
    } else {
      EXPECT_EQ(of_step, "no error");
      expect_means(step);
    }
  }
}

TEST_F(GivenUpBackward, JoinMayFollow) {
  GradientReducer reducer({{"early", early}, {"late", late}}, alone());
  for (int epoch = 0; epoch < 2; ++epoch) {
    const bool fails = rank() == 0;
    clear();
    expect_told(any_error_of([&] { loss(early, late, 1, fails).backward(); }), fails);
    for (int step = 0; step < 2 && rank() > 0; ++step) {
      clear();
      loss(early, late, 3, false).backward();
      reducer.synchronize();
      expect_gradient(early, 3);
    }
    (void)join();
    clear();
    loss(early, late, rank() + 1, false).backward();
    reducer.synchronize();
    expect_means(1);
  }
}

// Its backward() runs another backward(), which may throw, and then goes on without it.
struct TriesAnother : ::torch::autograd::Function<TriesAnother> {
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& other, bool fails) {
    context->save_for_backward({other});
    context->saved_data["fails"] = fails;
    return x.clone();
  }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list gradient) {
    const at::Tensor other = context->get_saved_variables()[0];
    const at::AutoGradMode on(true);
    at::Tensor inner = other * 1.0;
    if (context->saved_data["fails"].toBool()) fail_in_backward(inner);
    // `late` has its gradient first.
    const std::string error = any_error_of([&] { inner.sum().backward(); });
    EXPECT_EQ(error != "no error", context->saved_data["fails"].toBool());
    return {gradient[0], at::Tensor(), at::Tensor()};
  }
};

TEST_F(GivenUpBackward, APassWithinAnotherThatGoesOn) {
  const at::Tensor unused = leaf({2});
  GradientReducer reducer({{"early", early}, {"late", late}}, alone());
  for (int step = 1; step <= 4; ++step) {
    clear();
    const bool fails = rank() == 0 && step % 2 == 0;
    at::Tensor hidden = TriesAnother::apply(early * (step * (rank() + 1)), unused, fails);
    const at::Tensor first = hidden.sum();
    (first + weighted(late, step * (rank() + 1))).backward();
    expect_means(step);
    (void)allreduce(at::ones({1}), {.name = "metric"});
  }
}

// A pass within another one has ended, and the outer one has called no hook of the reducer.
TEST_F(GivenUpBackward, RightBehindAPassWithinIt) {
  GradientReducer reducer({{"early", early}}, alone());
  for (int step = 1; step <= 4; ++step) {
    clear();
    const bool fails = rank() == 0 && step % 2 == 0;
    const at::Tensor x = at::full({2}, step * (rank() + 1.0)).requires_grad_(true);
    const at::Tensor hidden = x * 1;
    if (fails) fail_in_backward(hidden);
    const std::string error =
        any_error_of([&] { segment(hidden, early, /*shown=*/false).sum().backward(); });
    if (step % 2 == 0) {
      expect_told(error, fails);
    } else {
      EXPECT_EQ(error, "no error");
      expect_gradient(early, step * mean_of_ranks());
    }
    (void)allreduce(at::ones({1}), {.name = "metric"});
  }
}

// A function that the program has queued for the end of backward().
TEST_F(GivenUpBackward, AFunctionAtTheEndThrowsOnThisRankAlone) {
  GradientReducer reducer({{"early", early}, {"late", late}}, alone());
  bool throws = false;
  call_after(early, [&](const at::Tensor&) {  // behind the reducer's hook, which queues before
    if (!throws) return;
    ::torch::autograd::Engine::get_default_engine().queue_callback(
        [] { throw std::runtime_error("the program's own"); });
  });
  for (int step = 1; step <= 4; ++step) {
    clear();
    throws = rank() == 0 && step == 2;
    const std::string error =
        any_error_of([&] { loss(early, late, step * (rank() + 1), false).backward(); });
    EXPECT_EQ(error != "no error", throws);
    expect_means(step);
  }
}

// The pass of another thread ends the round, in which two reducers end.
TEST_F(GivenUpBackward, WhileAnotherPassRuns) {
  const at::Tensor last = leaf({4});
  const at::Tensor other = leaf({5});
  GradientReducer of_three({{"early", early}, {"late", late}, {"last", last}}, alone());
  GradientReducer of_other({{"other", other}}, alone());
  bool fails = false;
  int step = 0;
  call_after(early, [&](const at::Tensor&) {
    std::jthread([&] {
      const at::Tensor hidden = last * (step * (rank() + 1));
      if (fails) fail_in_backward(hidden);
      const at::Tensor first = hidden.sum();
      const std::string error = any_error_of(
          [&] { (first + weighted(late, step * (rank() + 1))).backward(); });  // `late` comes first
      EXPECT_EQ(error != "no error", fails);
    });
  });
  for (step = 1; step <= 4; ++step) {
    clear();
    last.mutable_grad().reset();
    other.mutable_grad().reset();
    fails = rank() == 0 && step == 2;
    const double x = step * (rank() + 1);
    const std::string error =
        any_error_of([&] { (weighted(early, x) + weighted(other, x)).backward(); });
    if (step == 2) {
      expect_told(error, false);
    } else {
      EXPECT_EQ(error, "no error");
      expect_means(step);
      expect_gradient(last, step * mean_of_ranks());
      expect_gradient(other, step * mean_of_ranks());
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

// The step then has no gradients, on no rank.
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

// Nothing of the ended reducer is used again, and the next one has collectives of its own.
TEST_F(GivenUpBackward, TheReducerMayEndThen) {
  for (int round = 0; round < 3; ++round) {
    clear();
    GradientReducer reducer({{"early", early}, {"late", late}}, alone());
    expect_told(any_error_of([&] { loss(early, late, 1, rank() == 0).backward(); }), rank() == 0);
  }
}

// The replicas have gone apart, which is the only error that is told.
TEST(GivenUpStep, AStepThatOneRankHasLeftEndsWithABroadcast) {
  if (size() == 1) return;
  const at::Tensor w = leaf({3});
  auto optimizer = sgd({{"w", w}}, {.name = "left"});
  std::vector<std::string> errors;
  for (int step = 1; step <= 6; ++step) {
    optimizer.zero_grad();
    const std::string error = error_of([&] { weighted(w, 1).backward(); });
    if (rank() == 0 && step == 1) continue;  // an exception of the program, which goes on
    if (error == "no error") {
      optimizer.step();
    } else {
      errors.push_back(error);
      broadcast_parameters({{"w", w}}, 0);
    }
  }
  ASSERT_EQ(errors.size(), 1U) << testing::PrintToString(errors);
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 0 in backward 2 of step 1"),
                               HasSubstr("broadcast_parameters()")));
  check_replicas_equal({{"w", w}});
}

}  // namespace
}  // namespace horon::given_up_backward_test
