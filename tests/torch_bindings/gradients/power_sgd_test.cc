// PowerSGD beside the same computation of all ranks in one process.
#include "horon/torch_bindings/gradients/power_sgd.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon::power_sgd_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

at::Tensor parameter_of(std::vector<int64_t> shape, at::ScalarType dtype = at::kDouble) {
  return at::zeros(shape, dtype).requires_grad_(true);
}

// The values of one rank in one step, which every rank can compute.
at::Tensor values_of(int of, int step, at::IntArrayRef shape) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + of);
  return at::randn(shape, generator, at::kDouble);
}

at::Tensor mean_of(int step, at::IntArrayRef shape) {
  at::Tensor sum = at::zeros(shape, at::kDouble);
  for (int r = 0; r < size(); ++r) sum += values_of(r, step, shape);
  return sum / size();
}

void expect_near(const at::Tensor& got, const at::Tensor& expected, double tolerance = 1e-10) {
  EXPECT_TRUE(at::allclose(got.to(at::kDouble), expected, tolerance, tolerance))
      << got << "\nnot " << expected;
}

PowerSgdOptions at_once(int64_t matrix_rank) {
  return {.matrix_rank = matrix_rank, .start_step = 0};
}

// The columns of the mean are multiples of one column; each rank has its own multiples.
TEST(PowerSgd, AMeanOfLowRankComesOutExactly) {
  const at::Tensor w = parameter_of({12, 3, 5});
  PowerSgd power_sgd({{"w", w}}, at_once(2));
  for (int step = 0; step < 3; ++step) {
    const at::Tensor all = values_of(0, step, {12, 1});
    const auto of_rank = [&](int r) {
      return at::matmul(all, values_of(r + 1, step, {1, 15})).view({12, 3, 5});
    };
    at::Tensor mean = at::zeros({12, 3, 5}, at::kDouble);
    for (int r = 0; r < size(); ++r) mean += of_rank(r) / size();
    w.mutable_grad() = of_rank(rank());
    power_sgd.reduce();
    expect_near(w.grad(), mean);
  }
}

// The oracle follows the paper: one step of the power method on the mean of the ranks' matrices.
TEST(PowerSgd, IsTheMeanOverTheRanksOfAPowerStep) {
  for (const bool feedback : {true, false}) {
    const at::Tensor w = parameter_of({9, 20});
    PowerSgdOptions options = at_once(2);
    options.error_feedback = feedback;
    PowerSgd power_sgd({{"w", w}}, options);
    at::Tensor rows;
    std::vector<at::Tensor> left_out(static_cast<size_t>(size()), at::zeros({9, 20}, at::kDouble));
    at::Tensor sent = at::zeros({9, 20}, at::kDouble), given = sent.clone();
    for (int step = 0; step < 6; ++step) {
      at::Tensor mean = at::zeros({9, 20}, at::kDouble);
      for (int r = 0; r < size(); ++r) {
        left_out[static_cast<size_t>(r)] =
            left_out[static_cast<size_t>(r)] * feedback + values_of(r, step, {9, 20});
        mean += left_out[static_cast<size_t>(r)] / size();
      }
      w.mutable_grad() = values_of(rank(), step, {9, 20});
      power_sgd.reduce();
      if (size() == 1) return expect_near(w.grad(), values_of(0, step, {9, 20}));
      const at::Tensor got = w.grad();
      if (rows.defined()) {
        const at::Tensor basis = std::get<0>(at::linalg_qr(at::matmul(mean, rows)));
        expect_near(got, at::matmul(basis, at::matmul(basis.t(), mean)));
      }
      EXPECT_EQ(at::linalg_matrix_rank(got).item<int64_t>(), 2);
      // The next step begins from the rows of the result; any basis of them gives the same.
      rows = std::get<0>(at::linalg_qr(at::matmul(got.t(), values_of(0, 99, {9, 2}))));
      for (at::Tensor& each : left_out) each = each - got;
      sent += got;
      given += mean_of(step, {9, 20});
      check_replicas_equal({{"grad", got}});
    }
    if (!feedback) continue;
    at::Tensor rest = at::zeros({9, 20}, at::kDouble);
    for (const at::Tensor& each : left_out) rest += each / size();
    expect_near(sent + rest, given);
  }
}

TEST(PowerSgd, BeginsLaterAndLeavesSmallOnesAlone) {
  const at::Tensor w = parameter_of({16, 16}), bias = parameter_of({16}), scalar = parameter_of({});
  const at::Tensor flat = parameter_of({2, 400}), empty = parameter_of({0, 8});
  const NamedTensors all{{"w", w},       {"bias", bias},   {"scalar", scalar},
                         {"flat", flat}, {"empty", empty}, {"tied", w}};
  PowerSgdOptions options{.matrix_rank = 2, .start_step = 2};
  PowerSgd power_sgd(all, options);
  EXPECT_NEAR(power_sgd.compression_rate(), (256 + 16 + 1 + 800) / (64.0 + 16 + 1 + 800), 1e-12);
  for (int step = 0; step < 4; ++step) {
    for (const at::Tensor& each : {w, bias, scalar, flat, empty}) {
      each.mutable_grad() = values_of(rank(), step, each.sizes());
    }
    power_sgd.reduce();
    for (const at::Tensor& each : {bias, scalar, flat, empty}) {
      expect_near(each.grad(), mean_of(step, each.sizes()));
    }
    const bool is_exact = at::allclose(w.grad(), mean_of(step, {16, 16}));
    EXPECT_EQ(is_exact, step < 2 || size() == 1);
  }
  EXPECT_EQ(power_sgd.steps(), size() == 1 ? 0 : 4);
  options.min_compression_rate = 5;  // more than 4
  EXPECT_EQ(PowerSgd(all, options).compression_rate(), 1);
}

TEST(PowerSgd, GradientsThatSomeRanksHaveNot) {
  const at::Tensor some = parameter_of({9, 20}), none = parameter_of({9, 20});
  const at::Tensor vector = parameter_of({3}), table = parameter_of({30, 4});
  PowerSgd power_sgd({{"some", some}, {"none", none}, {"vector", vector}, {"table", table}},
                     at_once(1));
  for (int step = 0; step < 3; ++step) {
    for (const at::Tensor& each : {some, vector, table}) each.mutable_grad().reset();
    if (rank() == 0) {
      some.mutable_grad() = at::ones({9, 20}, at::kDouble);
      vector.mutable_grad() = at::ones({3}, at::kDouble);
    }
    table.mutable_grad() = at::ones({30, 4}, at::kDouble).to_sparse(1);
    power_sgd.reduce();
    expect_near(some.grad(), at::full({9, 20}, 1.0 / size(), at::kDouble));
    expect_near(vector.grad(), at::full({3}, 1.0 / size(), at::kDouble));
    expect_near(table.grad().to_dense(), at::ones({30, 4}, at::kDouble));
    EXPECT_FALSE(none.grad().defined());
  }
}

TEST(PowerSgd, KeepsNothingThatIsNotFinite) {
  if (size() == 1) return;
  const at::Tensor w = parameter_of({9, 20});
  PowerSgd power_sgd({{"w", w}}, at_once(1));
  for (int step = 0; step < 4; ++step) {
    w.mutable_grad() = at::ones({9, 20}, at::kDouble);
    const bool is_bad = step == 1;
    if (is_bad && rank() == size() - 1) {
      w.mutable_grad()[2][3] = std::numeric_limits<double>::quiet_NaN();
    }
    power_sgd.reduce();
    EXPECT_EQ(w.grad().isnan().sum().item<int64_t>(), is_bad ? 1 : 0);
    if (!is_bad) expect_near(w.grad(), at::ones({9, 20}, at::kDouble));
  }
}

// Sums overflow in one step, or all is zero, also what the approximation looks at first.
TEST(PowerSgd, RecoversFromHugeNumbersAndFromZeros) {
  if (size() == 1) return;
  struct Case {
    double usual, once;
  };
  for (const auto& [usual, once] :
       {Case{1, 2e38}, Case{1, 0}, Case{1e25, 1e25}, Case{1e-23, 1e-23}}) {
    const at::Tensor w = parameter_of({9, 20}, at::kFloat);
    PowerSgd power_sgd({{"w", w}}, at_once(1));
    for (int step = 0; step < 5; ++step) {
      const at::Tensor gradient = at::full({9, 20}, step == 1 ? once : usual, at::kFloat);
      gradient[0].zero_();  // a unit that is dead, a row for padding
      w.mutable_grad() = gradient.clone();
      power_sgd.reduce();
      if (once == 2e38 && step == 1) continue;
      expect_near(w.grad().to(at::kDouble) / usual, gradient.to(at::kDouble) / usual, 1e-4);
    }
  }
}

// The product of a weight that begins at 0, say.
TEST(PowerSgd, BeginsWithZeros) {
  const at::Tensor w = parameter_of({9, 20}, at::kFloat);
  PowerSgd power_sgd({{"w", w}}, at_once(2));
  for (int step = 0; step < 4; ++step) {
    const at::Tensor gradient = at::full({9, 20}, step < 2 ? 0 : rank() + 1, at::kFloat);
    w.mutable_grad() = gradient.clone();
    power_sgd.reduce();
    expect_near(w.grad(), at::full({9, 20}, step < 2 ? 0 : (size() + 1) / 2.0, at::kDouble), 1e-5);
  }
}

// Matrices in 16 bits are approximated in float32.
TEST(PowerSgd, OfDifferentTypesAndLayouts) {
  const at::Tensor half = parameter_of({24, 18}, at::kBFloat16),
                   single = parameter_of({8, 4, 3, 3}, at::kFloat);
  const at::Tensor complex = parameter_of({12, 12}, at::kComplexFloat);
  PowerSgd power_sgd({{"half", half}, {"single", single}, {"complex", complex}}, at_once(1));
  for (int step = 0; step < 2; ++step) {
    half.mutable_grad() = at::full({24, 18}, rank() + 1, at::kBFloat16);
    single.mutable_grad() =
        at::full({8, 4, 3, 3}, rank() + 1, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast);
    complex.mutable_grad() = at::full({12, 12}, c10::complex<float>(0, rank() + 1.0F));
    power_sgd.reduce();
    const double mean = (size() + 1) / 2.0;
    expect_near(half.grad(), at::full({24, 18}, mean, at::kDouble), 0.01);
    expect_near(single.grad(), at::full({8, 4, 3, 3}, mean, at::kDouble), 1e-5);
    expect_near(at::imag(complex.grad()), at::full({12, 12}, mean, at::kDouble), 1e-5);
    EXPECT_EQ(half.grad().scalar_type(), at::kBFloat16);
  }
}

TEST(PowerSgd, WrongUseIsToldOnAllRanks) {
  const at::Tensor w = parameter_of({9, 20});
  const auto of = [&](const PowerSgdOptions& options) {
    return error_of([&] { PowerSgd power_sgd({{"w", w}}, options); });
  };
  EXPECT_THAT(of({.matrix_rank = 0}), AllOf(StartsWith(kInvalid), HasSubstr("matrix_rank is 0")));
  EXPECT_THAT(of({.start_step = -1}), HasSubstr("start_step is -1"));
  EXPECT_THAT(of({.min_compression_rate = 0.5}), HasSubstr("min_compression_rate is 0.5"));
  if (size() == 1) return;
  const int last = size() - 1;
  PowerSgd other({{"w", w}}, at_once(rank() == last ? 2 : 1));
  EXPECT_THAT(error_of([&] { other.reduce(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("matrix_rank 2")));
  PowerSgd power_sgd({{"w", w}}, at_once(1));
  w.mutable_grad() = at::ones({9, 20}, at::kDouble);
  if (rank() == last) w.mutable_grad().set_data(at::ones({3, 3}, at::kDouble));
  EXPECT_THAT(error_of([&] { power_sgd.reduce(); }),
              AllOf(StartsWith(kInvalid), HasSubstr("gradient of \"w\" has shape [3, 3]"),
                    HasSubstr("rank " + std::to_string(last))));
  w.mutable_grad().reset();
  w.mutable_grad() = at::ones({9, 20}, at::kDouble);
  power_sgd.reduce();
  expect_near(w.grad(), at::ones({9, 20}, at::kDouble));
}

TEST(PowerSgd, ParametersInAnotherOrderOrOfAnotherLengthNow) {
  if (size() == 1) return;
  const at::Tensor a = parameter_of({9, 20}), c = parameter_of({9, 20});
  for (const at::Tensor& each : {a, c}) each.mutable_grad() = at::ones({9, 20}, at::kDouble);
  PowerSgd other(rank() == 0 ? NamedTensors{{"a", a}, {"c", c}} : NamedTensors{{"c", c}, {"a", a}},
                 at_once(1));
  EXPECT_THAT(error_of([&] { other.reduce(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("in place 1")));
  PowerSgd power_sgd({{"a", a}}, at_once(1));
  a.mutable_grad().reset();
  if (rank() == 0) a.mutable_grad() = at::ones({9, 1}, at::kDouble).expand({9, 20});
  EXPECT_THAT(error_of([&] { power_sgd.reduce(); }),
              AllOf(HasSubstr("gradient of a"), HasSubstr("rank 0")));
}

// Rank 0 has made fewer steps than the other ranks, or none at all.
TEST(PowerSgd, GoesOnAfterAJoin) {
  if (size() == 1) return;
  const at::Tensor w = parameter_of({9, 20});
  for (const int first : {0, 1}) {
    PowerSgd power_sgd({{"w", w}}, {.matrix_rank = 1, .start_step = 3});
    const auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        w.mutable_grad() = at::ones({9, 20}, at::kDouble);
        power_sgd.reduce();
        expect_near(w.grad(), at::ones({9, 20}, at::kDouble));
      }
    };
    steps(rank() == 0 ? first : 2);
    join();
    steps(4);
  }
}

TEST(PowerSgd, AmongTheRanksOfAProcessSet) {
  if (size() < 3) return;
  const ProcessSet set = add_process_set({0, size() - 1});
  const at::Tensor w = parameter_of({9, 20});
  PowerSgdOptions options = at_once(1);
  options.process_set = set;
  PowerSgd power_sgd({{"w", w}}, options);
  w.mutable_grad() = at::full({9, 20}, rank(), at::kDouble);
  power_sgd.reduce();
  const double expected = set.includes_me() ? (size() - 1) / 2.0 : rank();
  expect_near(w.grad(), at::full({9, 20}, expected, at::kDouble));
  remove_process_set(set);
}

// It learns about as well as with all of the gradient.
TEST(PowerSgd, Trains) {
  const auto loss_after = [](bool compresses) {
    Net net = make_net(at::kFloat);
    broadcast_parameters(*net);
    ::torch::optim::SGD optimizer(net->parameters(),
                                  ::torch::optim::SGDOptions(0.05).momentum(0.9));
    PowerSgdOptions options{.matrix_rank = 2, .start_step = 5};
    options.min_compression_rate = compresses ? 1 : 1e6;
    PowerSgd power_sgd(*net, options);
    EXPECT_EQ(power_sgd.compression_rate() > 1.5, compresses);
    const Batch whole = batch_of(0, at::kFloat, 40 * size());
    const auto loss = [&](const Batch& batch) { return loss_of(net, batch); };
    for (int step = 0; step < 60; ++step) {
      optimizer.zero_grad();
      loss(whole.narrow(40 * rank(), 40)).backward();
      power_sgd.reduce();
      optimizer.step();
    }
    check_replicas_equal(*net);
    return loss(whole).item<double>();
  };
  const double exact = loss_after(false);
  const double compressed = loss_after(true);
  EXPECT_LT(compressed, std::max(0.3, 1.5 * exact));
}

}  // namespace
}  // namespace horon::power_sgd_test
