// Complex parameters: each number is reduced as two real ones, in buckets of their own.
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/tests/torch_bindings/gradients/sharded_support.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::complex_gradients_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

using Complex = c10::complex<double>;
constexpr Complex kFactor{3, -4};

at::Tensor complex_leaf(std::vector<int64_t> shape, at::ScalarType dtype = at::kComplexFloat) {
  return leaf(std::move(shape), dtype);
}

// LibTorch multiplies by the conjugate, so the gradient in w is `by` times kFactor.
at::Tensor loss_of(const at::Tensor& w, double by) {
  return at::real(w * at::scalar_tensor(std::conj(kFactor), w.options()) * by).sum();
}

void expect_factor(const at::Tensor& w, double by, double tolerance = 1e-6) {
  ASSERT_TRUE(w.grad().defined());
  EXPECT_EQ(w.grad().scalar_type(), w.scalar_type());
  EXPECT_EQ(w.grad().strides(), w.strides());
  const at::Tensor want = at::full(w.sizes(), kFactor * by, at::kComplexDouble);
  EXPECT_TRUE(at::allclose(w.grad().to(at::kComplexDouble), want, tolerance, 0))
      << w.grad() << "\nand not " << kFactor * by;
}

TEST(ComplexGradients, OfAllShapesBesideRealOnes) {
  const at::Tensor w = complex_leaf({3}), scalar = complex_leaf({}), empty = complex_leaf({0, 4});
  const at::Tensor wide = complex_leaf({5, 7}, at::kComplexDouble), real = leaf({4});
  const at::Tensor turned = at::ones({6, 2}, at::kComplexFloat).t().requires_grad_(true);
  const NamedTensors all{{"w", w},       {"scalar", scalar}, {"empty", empty},
                         {"wide", wide}, {"real", real},     {"turned", turned}};
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
      for (const int64_t bytes : {int64_t{1}, int64_t{1} << 20}) {
        GradientReducer reducer(
            all,
            {.op = op, .bucket_bytes = bytes, .first_bucket_bytes = bytes, .wait_in = wait_in});
        for (int step = 1; step <= 3; ++step) {
          at::Tensor loss = weighted(real, step * (rank() + 1));
          for (const at::Tensor& each : {w, scalar, empty, wide, turned}) {
            loss = loss + loss_of(each, step * (rank() + 1)).to(at::kFloat);
          }
          loss.backward();
          reducer.synchronize();
          const double by = step * (op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks());
          for (const at::Tensor& each : {w, scalar, empty, wide, turned}) expect_factor(each, by);
          expect_gradient(real, by);
          for (const auto& [name, each] : all) each.mutable_grad().reset();
        }
      }
    }
  }
}

TEST(ComplexGradients, AddUpOverSeveralPasses) {
  const at::Tensor w = complex_leaf({3}), v = complex_leaf({2, 2});
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
      GradientReducer reducer({{"w", w}, {"v", v}}, alone(op, wait_in));
      loss_of(w, rank() + 1).backward();  // v is absent
      (loss_of(w, rank() + 1) + loss_of(v, 1)).backward();
      reducer.synchronize();
      expect_factor(w, 2 * (op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks()));
      expect_factor(v, op == ReduceOp::Sum ? size() : 1);
      for (const at::Tensor& each : {w, v}) each.mutable_grad().reset();
    }
  }
}

TEST(ComplexGradients, AreWeighted) {
  const at::Tensor w = complex_leaf({3});
  GradientReducer reducer({{"w", w}});
  reducer.set_weight(rank() + 1);
  loss_of(w, rank() + 1).backward();
  reducer.synchronize();
  double weights = 0, products = 0;
  for (int r = 1; r <= size(); ++r) {
    weights += r;
    products += r * r;
  }
  expect_factor(w, products / weights);
}

TEST(ComplexGradients, TravelIn16Bits) {
  for (const Compression compression : {Compression::Float16, Compression::BFloat16}) {
    const at::Tensor w = complex_leaf({3}), more = complex_leaf({700});
    const at::Tensor wide = complex_leaf({2}, at::kComplexDouble), real = leaf({5});
    GradientReducer reducer({{"w", w}, {"more", more}, {"wide", wide}, {"real", real}},
                            {.compression = compression});
    const double exact = rank() == 0 ? 1 + 1.0 / 1024 : 1;  // not in bfloat16
    for (int step = 0; step < 2; ++step) {
      (loss_of(w, rank() + 1) + loss_of(more, rank() + 1) + weighted(real, rank() + 1) +
       loss_of(wide, exact).to(at::kFloat))
          .backward();
      expect_factor(w, mean_of_ranks(), 0.01);
      expect_factor(more, mean_of_ranks(), 0.01);
      expect_gradient(real, mean_of_ranks(), 0.01);
      expect_factor(wide, 1 + 1.0 / 1024 / size(), 1e-12);
      for (const at::Tensor& each : {w, more, wide, real}) each.mutable_grad().reset();
    }
  }
}

TEST(ComplexGradients, TravelInBlocksOfInt8) {
  const at::Tensor w = complex_leaf({3}), more = complex_leaf({2000});
  GradientReducer reducer({{"w", w}, {"more", more}}, {.compression = Compression::Int8});
  (loss_of(w, rank() + 1) + loss_of(more, rank() + 1)).backward();
  expect_factor(w, mean_of_ranks(), 0.02);
  expect_factor(more, mean_of_ranks(), 0.02);
}

// What the function of before_bucket() sees.
TEST(ComplexGradients, InBucketsOfTheirOwn) {
  const at::Tensor w = complex_leaf({3}), v = complex_leaf({2}), real = leaf({4});
  GradientReducer reducer({{"w", w}, {"real", real}, {"v", v}});
  int64_t complex_elements = 0;
  reducer.before_bucket([&](const BucketView& bucket) {
    if (!bucket.flat.is_complex()) return;
    EXPECT_THAT(bucket.parameters, testing::ElementsAre("v", "w"));
    complex_elements += bucket.flat.numel();
    bucket.flat.mul_(Complex(0, 1));
  });
  (loss_of(w, 1) + loss_of(v, 1) + weighted(real, 1)).backward();
  EXPECT_EQ(complex_elements, size() > 1 ? 5 : complex_elements);
  EXPECT_TRUE(at::allclose(w.grad() * Complex(0, -1), at::full({3}, kFactor, w.options())));
  expect_gradient(real, 1);
}

TEST(ComplexGradients, NotFiniteInOnePart) {
  const at::Tensor w = complex_leaf({3}), v = complex_leaf({2});
  GradientReducer reducer({{"w", w}, {"v", v}}, {.check_finite = true});
  const auto backward = [&](double imaginary) {
    for (const at::Tensor& each : {w, v}) each.mutable_grad().reset();
    const at::Tensor factor = at::full({2}, Complex(1, imaginary), v.options());
    (loss_of(w, 1) + at::real(v * factor.conj()).sum()).backward();
  };
  backward(7);
  EXPECT_TRUE(v.grad().equal(at::full({2}, Complex(1, 7), v.options())));
  const double bad = rank() == size() - 1 ? std::numeric_limits<double>::infinity() : 7;
  EXPECT_THAT(error_of([&] { backward(bad); }),
              AllOf(HasSubstr("\"v\""), HasSubstr("rank " + std::to_string(size() - 1)),
                    HasSubstr("2 elements")));
  backward(7);
  expect_factor(w, 1);
}

TEST(ComplexGradients, ReplicasThatDifferInOnePart) {
  if (size() == 1) return;
  const at::Tensor w = complex_leaf({3}), v = complex_leaf({2});
  {
    const at::NoGradGuard no_grad;
    if (rank() == size() - 1) v[1] = Complex(1, 0.5);
  }
  GradientReducer reducer({{"w", w}, {"v", v}});
  EXPECT_THAT(error_of([&] {
                for (int step = 0; step < 4; ++step) (loss_of(w, 1) + loss_of(v, 1)).backward();
              }),
              AllOf(HasSubstr("parameter \"v\" differs on rank " + std::to_string(size() - 1)),
                    HasSubstr("element 1: 0.5 and 0")));
}

TEST(ComplexGradients, NeitherOrderNorProduct) {
  const at::Tensor w = complex_leaf({3});
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    EXPECT_THAT(error_of([&] {
                  GradientReducer reducer({{"w", w}}, {.op = op});
                }),
                HasSubstr("\"w\" is complex, and complex dtypes have no "));
  }
  const at::Tensor frozen = at::ones({2}, at::kComplexFloat), real = leaf({2});
  GradientReducer reducer({{"frozen", frozen}, {"real", real}}, {.op = ReduceOp::Max});
  weighted(real, rank() + 1).backward();
  expect_gradient(real, size());
}

TEST(ComplexGradients, APairOfRealNumbersOnAnotherRank) {
  if (size() == 1) return;
  const at::Tensor w =
      rank() == 0 ? leaf({3, 2}) : at::ones({3}, at::kComplexFloat).requires_grad_(true);
  GradientReducer reducer({{"w", w}});
  const at::Tensor loss = rank() == 0 ? weighted(w, 1) : loss_of(w, 1);
  EXPECT_THAT(
      error_of([&] { loss.backward(); }),
      AllOf(HasSubstr("parameter \"w\""), HasSubstr("ComplexFloat [3]"), HasSubstr("rank 0")));
}

template <class Optimizer>
void make_steps(Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  for (int step = 1; step <= 4; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& each : parameters) loss = loss + each.abs().square().sum();
    (loss * step * (rank() + 1)).backward();
    optimizer.step();
  }
}

std::vector<at::Tensor> start() {
  std::vector<at::Tensor> all;
  for (int i = 1; i < 6; ++i) {
    all.push_back(at::full({40 * i}, Complex(i, -1), at::kComplexFloat).requires_grad_(true));
    all.push_back(at::full({3, i}, i, at::kFloat).requires_grad_(true));
  }
  return all;
}

// The oracle: the same gradients in one process.
TEST(ComplexGradients, TrainAsOneProcessDoes) {
  const optim::SGDOptions sgd = optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1);
  const std::vector<at::Tensor> expected = start();
  optim::SGD plain(expected, sgd);
  for (int step = 1; step <= 4; ++step) {
    plain.zero_grad();
    for (const at::Tensor& each : expected) {
      (each.abs().square().sum() * step * mean_of_ranks()).backward();
    }
    double squares = 0;
    for (const at::Tensor& each : expected) {
      squares += std::pow(each.grad().abs().to(at::kDouble).norm().item<double>(), 2);
    }
    const double share = std::min(1.0, 5 / (std::sqrt(squares) + 1e-6));
    for (const at::Tensor& each : expected) each.mutable_grad().mul_(share);
    plain.step();
  }
  for (const bool shards : {false, true}) {
    const std::vector<at::Tensor> got = start();
    DistributedOptimizerOptions options{.clip_grad_norm = 5};
    options.shard_optimizer_state = shards;
    DistributedOptimizer optimizer(optim::SGD(got, sgd), {}, options);
    make_steps(optimizer, got);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-5, 1e-6)) << i;
    }
    if (shards) optimizer.consolidate_state(size() - 1);
    broadcast_optimizer_state(optimizer, size() - 1);
    EXPECT_EQ(optimizer.state().size(), shards ? optimizer.state().size() : got.size());
  }
}

// The other ranks' loss is a real number.
TEST(ComplexGradients, OfARankWithoutALoss) {
  const at::Tensor w = complex_leaf({3});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  const bool has_none = size() > 1 && rank() == 0;
  const at::Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    if (has_none) return at::Tensor();
    const at::Tensor own = loss_of(w, 1);
    own.backward();
    return own;
  });
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), 9, 1e-5);
}

TEST(ComplexGradients, AreNotClippedByValue) {
  const std::vector<at::Tensor> parameters = start();
  DistributedOptimizer optimizer(optim::SGD(parameters, 0.01), {}, {.clip_grad_value = 1});
  EXPECT_THAT(error_of([&] { make_steps(optimizer, parameters); }),
              AllOf(HasSubstr("clip_grad_value"), HasSubstr("complex")));
  EXPECT_TRUE(parameters[0].equal(start()[0]));
}

// LibTorch's embedding has no complex gradients, so the program sets them.
TEST(ComplexGradients, StayOrBecomeDenseWhereTheyAreSparse) {
  for (const bool as_dense : {true, false}) {
    const at::Tensor table = complex_leaf({10, 3});
    GradientReducer reducer({{"table", table}},
                            {.sparse_as_dense = as_dense, .wait_in = WaitIn::Step});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor rows = at::tensor({rank(), 9}, at::kLong).unsqueeze(0);
      const at::Tensor values = at::full({2, 3}, kFactor * (rank() + 1.0), table.options());
      table.mutable_grad() = at::sparse_coo_tensor(rows, values.detach(), {10, 3});
      reducer.synchronize();
      EXPECT_EQ(table.grad().is_sparse(), !as_dense);
      const at::Tensor dense = table.grad().to_dense();
      const auto row = [&](int64_t index) { return dense[index][0].item<Complex>(); };
      EXPECT_LT(std::abs(row(9) - kFactor * mean_of_ranks()), 1e-5) << dense;
      EXPECT_LT(std::abs(row(rank()) - kFactor * (rank() + 1.0) / Complex(size())), 1e-5);
    }
  }
}

}  // namespace
}  // namespace horon::complex_gradients_test
