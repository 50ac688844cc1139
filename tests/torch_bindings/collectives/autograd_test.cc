// How the differentiable collectives behave in a program: names, threads, ranks that take part with
// nothing, errors.
#include "horon/torch_bindings/collectives/autograd.h"

#include <cmath>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>

#include "horon/tests/torch_bindings/collectives/autograd_support.h"
#include "horon/tests/torch_bindings/no_memory.h"
#include "horon/tests/torch_bindings/session_environment.h"

namespace horon::autograd_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;
using testing_support::error_without_memory;
using testing_support::expect_close;
using testing_support::tells_of_rank_0;
using testing_support::values;

class Autograd : public testing::Test {
 protected:
  void TearDown() override { barrier(); }
};

TEST_F(Autograd, PlainValuesAreThoseOfThePlainForms) {
  const at::Tensor x = values({4, 3}, rank());
  EXPECT_TRUE(at::equal(autograd::allreduce(x), allreduce(x)));
  EXPECT_TRUE(at::equal(autograd::allgather(x), allgather(x)));
  const at::Tensor whole = at::full({3}, rank(), at::kLong);
  const at::Tensor sum = autograd::allreduce(whole, {.op = ReduceOp::Sum});
  EXPECT_EQ(sum.sum().item<int64_t>(), 3 * size() * (size() - 1) / 2);
  EXPECT_FALSE(sum.requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(autograd::allreduce(values({2}, 0).requires_grad_(true)).requires_grad());
}

// Only the root's tensor is a parameter: the others take part all the same.
TEST_F(Autograd, RanksWhoseTensorNeedsNoGradientTakePart) {
  const bool root = rank() == 0;
  const at::Tensor x =
      root ? at::ones({2}, at::kDouble).requires_grad_(true) : at::zeros({2}, at::kDouble);
  const at::Tensor y = autograd::broadcast(x);
  EXPECT_TRUE(y.requires_grad());
  (y.sum() * (rank() + 1)).backward();
  if (root) expect_close(x.grad(), at::full({2}, size() * (size() + 1) / 2.0, at::kDouble));
  EXPECT_EQ(x.grad().defined(), root);
}

// Its backward gives an undefined gradient.
class Forgetful : public torch::autograd::Function<Forgetful> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list /*gradients*/) {
    return {at::Tensor()};
  }
};

TEST_F(Autograd, UndefinedGradientOnOneRankCountsAsZeros) {
  const int silent = size() - 1;
  const at::Tensor x = at::ones({3, 2}, at::kDouble).requires_grad_(true);
  at::Tensor y = autograd::allreduce(x, {.op = ReduceOp::Sum});
  if (rank() == silent) y = Forgetful::apply(y);
  y.sum().backward();
  expect_close(x.grad(), at::full({3, 2}, size() - 1.0, at::kDouble));
  x.mutable_grad().reset();
  at::Tensor rows = autograd::allgather(x);
  if (rank() == silent) rows = Forgetful::apply(rows);
  rows.sum().backward();
  expect_close(x.grad(), at::full({3, 2}, size() - 1.0, at::kDouble));
}

TEST_F(Autograd, SparseAndExpandedGradients) {
  const at::Tensor x = at::ones({4, 2}, at::kDouble).requires_grad_(true);
  const at::Tensor table = autograd::allreduce(x, {.op = ReduceOp::Sum});
  const at::Tensor index = at::full({1}, rank() % 4, at::kLong);
  at::embedding(table, index, -1, false, /*sparse=*/rank() % 2 == 0).sum().backward();
  at::Tensor want = at::zeros({4, 2}, at::kDouble);
  for (int r = 0; r < size(); ++r) want[r % 4] += 1;
  expect_close(x.grad(), want);
}

TEST_F(Autograd, TwoBackwardsThroughOneGraph) {
  const at::Tensor x = values({5}, rank()).requires_grad_(true);
  const at::Tensor y = autograd::allreduce(x, {.name = "twice", .op = ReduceOp::Sum}).sum();
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  expect_close(x.grad(), at::full({5}, 2.0 * size(), at::kDouble));
}

// One name in each step, in several calls of a step, and in a forward that is done again.
TEST_F(Autograd, NamesMayBeUsedAgain) {
  const at::Tensor x = at::ones({3}, at::kDouble).requires_grad_(true);
  for (int step = 0; step < 3; ++step) {
    const AllreduceOptions options{.name = "again", .op = ReduceOp::Sum};
    const at::Tensor lost = autograd::allreduce(x, options);
    at::Tensor y = autograd::allreduce(autograd::allreduce(x, options), options);
    y.sum().backward();
    expect_close(x.grad(), at::full({3}, std::pow(size(), 2), at::kDouble));
    x.mutable_grad().reset();
  }
}

TEST_F(Autograd, CompressionIsStraightThrough) {
  const at::Tensor x = at::full({4}, 1.0 / 3).requires_grad_(true);
  const at::Tensor y =
      autograd::allreduce(x, {.op = ReduceOp::Sum, .compression = Compression::BFloat16});
  (y * 3).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 3.0 * size())));

  const at::Tensor rows = at::full({4, 2}, 1.0 / 3).requires_grad_(true);
  const at::Tensor own = autograd::reducescatter(
      rows, {.op = ReduceOp::Sum, .prescale = 0.5, .compression = Compression::BFloat16});
  (own * 3).sum().backward();
  EXPECT_TRUE(at::equal(rows.grad(), at::full({4, 2}, 1.5)));
  const at::Tensor complex = at::view_as_complex(at::ones({4, 2})).requires_grad_(true);
  const ReducescatterOptions sum{.op = ReduceOp::Sum, .compression = Compression::Float16};
  at::view_as_real(autograd::reducescatter(complex, sum)).sum().backward();
  EXPECT_TRUE(at::equal(at::view_as_real(complex.grad()), at::ones({4, 2})));
  complex.mutable_grad().reset();
  const at::Tensor sums = autograd::reducescatter(complex, sum);
  sums.backward(at::ones_like(sums).mul(c10::complex<float>(1, 2)).conj());  // a view
  EXPECT_TRUE(at::equal(at::view_as_real(complex.grad())[3], at::tensor({1.0F, -2.0F})));
}

TEST_F(Autograd, HalfGradients) {
  const at::Tensor x = at::full({4}, 0.5, at::kHalf).requires_grad_(true);
  autograd::allgather(x).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, size(), at::kHalf)));
}

TEST_F(Autograd, ReductionsWithoutDerivativeAreRefused) {
  const at::Tensor x = at::ones({4}, at::kDouble).requires_grad_(true);
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    const auto says = AllOf(StartsWith("invalid argument"), HasSubstr("\"loss\""),
                            HasSubstr(std::string(to_string(op))), HasSubstr("no derivative"));
    EXPECT_THAT(error_of([&] { autograd::allreduce(x, {.name = "loss", .op = op}); }), says);
    barrier();  // all are told before the next begins
    EXPECT_THAT(error_of([&] { autograd::reducescatter(x, {.name = "loss", .op = op}); }), says);
    barrier();
  }
  // One rank alone: the others learn it instead of waiting.
  const ReduceOp op = rank() == size() - 1 ? ReduceOp::Max : ReduceOp::Sum;
  EXPECT_THAT(error_of([&] { autograd::allreduce(x, {.name = "loss", .op = op}); }),
              AllOf(StartsWith("invalid argument"), HasSubstr("no derivative")));
}

TEST_F(Autograd, WhatHasNoGradientHasAnyReduction) {
  const at::Tensor whole = at::full({2}, rank(), at::kLong);
  EXPECT_TRUE(at::equal(autograd::allreduce(whole, {.op = ReduceOp::Max}),
                        at::full({2}, size() - 1, at::kLong)));
  const at::Tensor rows = at::full({size()}, rank(), at::kLong);
  EXPECT_TRUE(
      at::equal(autograd::reducescatter(rows, {.op = ReduceOp::Min}), at::zeros({1}, at::kLong)));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(autograd::allreduce(at::full({2}, rank() + 1.0), {.op = ReduceOp::Min}),
                        at::ones({2})));
}

TEST_F(Autograd, ResultsMayBeChangedInPlace) {
  for (const at::ScalarType type : {at::kDouble, at::kComplexDouble}) {
    SCOPED_TRACE(type);
    const at::Tensor x = values({2, 3}, rank(), type).requires_grad_(true);
    const at::Tensor sum = autograd::allreduce(x, {.op = ReduceOp::Sum}).mul_(2);
    const at::Tensor all = autograd::allgather(x).mul_(3);
    at::real(sum.sum() + all.sum()).backward();
    expect_close(x.grad(), at::full({2, 3}, 5.0 * size(), type));
  }
}

TEST_F(Autograd, GivenResultsAreRefused) {
  const at::Tensor x = at::ones({size(), 2}).requires_grad_(true);
  const at::Tensor given = at::zeros({size() * size(), 2});
  const auto refused = AllOf(HasSubstr("\"rows\""), HasSubstr("leave out `output`"));
  EXPECT_THAT(error_of([&] { autograd::allgather(x, {.name = "rows", .output = given}); }),
              refused);
  barrier();
  EXPECT_THAT(error_of([&] { autograd::alltoall(x, {.name = "rows", .output = given}); }), refused);
  EXPECT_FALSE(given.requires_grad());
}

TEST_F(Autograd, ErrorsOfForwardAndBackwardKeepTheirType) {
  EXPECT_THAT(error_of([] { autograd::allgather(at::Tensor()); }),
              AllOf(StartsWith("invalid argument"), HasSubstr("autograd.allgather.noname")));
  EXPECT_THAT(error_of([] { autograd::broadcast(at::ones({1}), {.root = size()}); }),
              StartsWith("invalid argument"));
  EXPECT_THAT(error_of([] { autograd::scatter(at::ones({}), {}); }),
              StartsWith("invalid argument"));
  barrier();
  if (size() == 1) return;
  const at::Tensor x = at::ones({3}, at::kDouble).requires_grad_(true);
  const at::Tensor y = autograd::allreduce(x, {.name = "shape", .op = ReduceOp::Sum});
  if (rank() == size() - 1) {
    // This rank's gradient goes somewhere else under the same name.
    EXPECT_THAT(error_of([] { allreduce(at::ones({5}), {.name = "shape.backward"}); }),
                StartsWith("mismatch"));
  } else {
    EXPECT_THAT(error_of([&] { y.sum().backward(); }),
                AllOf(StartsWith("mismatch"), HasSubstr("shape.backward")));
  }
  barrier();
  const at::Tensor again = at::ones({3}, at::kDouble).requires_grad_(true);
  autograd::allreduce(again, {.name = "shape", .op = ReduceOp::Sum}).sum().backward();
  expect_close(again.grad(), at::full({3}, double(size()), at::kDouble));
}

TEST_F(Autograd, ABackwardWithoutMemoryFailsOnAllRanks) {
  const at::Tensor x = at::ones({size() * 1000}).requires_grad_(true);
  const at::Tensor own = autograd::reducescatter(
      x, {.name = "narrow", .op = ReduceOp::Sum, .compression = Compression::Float16});
  const at::Tensor gradient = at::ones({1000});
  EXPECT_THAT(error_without_memory([&] { own.backward(gradient, /*retain_graph=*/true); }),
              tells_of_rank_0());
  own.backward(gradient);
  expect_close(x.grad(), at::ones_like(x));

  const at::Tensor rows = at::ones({400, 2}).requires_grad_(true);
  const at::Tensor table = autograd::allreduce(rows, {.name = "table", .op = ReduceOp::Sum});
  const at::Tensor looked_up =
      at::embedding(table, at::zeros({1}, at::kLong), -1, false, /*sparse=*/true).sum();
  EXPECT_THAT(error_without_memory([&] { looked_up.backward({}, /*retain_graph=*/true); }),
              tells_of_rank_0());
  looked_up.backward();
  EXPECT_EQ(rows.grad().sum().item<float>(), 2.0F * size());
}

}  // namespace
}  // namespace horon::autograd_test
