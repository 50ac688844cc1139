// Sparse gradients that stay sparse: sparse_as_dense = false.
#include <limits>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::reducer_sparse_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

constexpr int64_t kRows = 7, kColumns = 3;

GradientReducerOptions sparse_options(ReduceOp op) {
  GradientReducerOptions options = in_flight(op);
  options.sparse_as_dense = false;
  return options;
}

at::Tensor table_of(at::ScalarType dtype = at::kDouble) { return leaf({kRows, kColumns}, dtype); }

// The rows that a rank looks up: its own one twice, and one that all share.
at::Tensor rows_of(int rank) { return at::tensor({rank % 4, rank % 4, 5}, at::kLong); }

at::Tensor looked_up(const at::Tensor& table, int rank) {
  return at::embedding(table, rows_of(rank), -1, false, true).sum() * (rank + 1);
}

// What looked_up() of one rank brings, dense.
at::Tensor dense_share(int rank) {
  at::Tensor share = at::zeros({kRows, kColumns}, at::kDouble);
  share[rank % 4] += 2.0 * (rank + 1);
  share[5] += rank + 1.0;
  return share;
}

at::Tensor dense_sum() {
  at::Tensor sum = at::zeros({kRows, kColumns}, at::kDouble);
  for (int r = 0; r < size(); ++r) sum += dense_share(r);
  return sum;
}

double divisor(ReduceOp op) { return op == ReduceOp::Average ? size() : 1; }

void expect_sparse(const at::Tensor& table, const at::Tensor& want) {
  const at::Tensor& grad = table.grad();
  ASSERT_TRUE(grad.defined());
  ASSERT_EQ(grad.layout(), at::kSparse);
  EXPECT_TRUE(grad.is_coalesced());
  EXPECT_EQ(grad.scalar_type(), table.scalar_type());
  EXPECT_EQ(grad.sparse_dim(), 1);
  EXPECT_TRUE(at::allclose(grad.to_dense().to(at::kDouble), want, 1e-12, 1e-12))
      << grad << "\nand not " << want;
}

TEST(SparseReducer, GradientsStaySparse) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    const at::Tensor table = table_of(), w = leaf({4}, at::kDouble);
    GradientReducer reducer({{"table", table}, {"w", w}}, sparse_options(op));
    for (int step = 0; step < 3; ++step) {
      table.mutable_grad().reset();
      w.mutable_grad().reset();
      (looked_up(table, rank()) + weighted(w, rank() + 1)).backward();
      reducer.synchronize();
      expect_sparse(table, dense_sum() / divisor(op));
      EXPECT_EQ(table.grad()._nnz(), std::min(size(), 4) + 1);
      expect_gradient(w, op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks());
    }
    EXPECT_EQ(reducer.statistics().late_parts, 0);
  }
}

TEST(SparseReducer, SeveralPassesAndNoZeroGrad) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    const at::Tensor table = table_of();
    GradientReducer reducer({{"table", table}}, sparse_options(op));
    for (int step = 1; step <= 3; ++step) {
      looked_up(table, rank()).backward();
      if (rank() == 0) (looked_up(table, 0) * 2).backward();
      reducer.synchronize();
      expect_sparse(table, step * (dense_sum() + 2 * dense_share(0)) / divisor(op));
    }
    // Nothing new on any rank, then on one.
    reducer.synchronize();
    expect_sparse(table, 3 * (dense_sum() + 2 * dense_share(0)) / divisor(op));
    if (rank() == size() - 1) looked_up(table, 0).backward();
    reducer.synchronize();
    expect_sparse(table, (3 * dense_sum() + 7 * dense_share(0)) / divisor(op));
  }
}

TEST(SparseReducer, UnusedOnSomeRanksAndOnAll) {
  const at::Tensor table = table_of();
  GradientReducer reducer({{"table", table}}, sparse_options(ReduceOp::Sum));
  for (int step = 0; step < 4; ++step) {
    table.mutable_grad().reset();
    const int user = step % 2 == 0 ? size() - 1 : size();
    if (rank() == user) looked_up(table, 1).backward();
    reducer.synchronize();
    if (user == size()) {
      EXPECT_FALSE(table.grad().defined());
    } else {
      expect_sparse(table, dense_share(1));
    }
  }
}

// One rank uses the whole table: then the gradient is dense, and sparse again when no rank does.
TEST(SparseReducer, DenseOnOneRank) {
  const at::Tensor table = table_of();
  GradientReducer reducer({{"table", table}}, sparse_options(ReduceOp::Sum));
  for (int step = 0; step < 2; ++step) {
    table.mutable_grad().reset();
    (rank() == 0 ? weighted(table, 3) : looked_up(table, rank())).backward();
    reducer.synchronize();
    const at::Tensor want = dense_sum() - dense_share(0) + 3;
    EXPECT_TRUE(at::allclose(table.grad().to_dense(), want)) << table.grad();
  }
  for (int step = 0; step < 2; ++step) {
    table.mutable_grad().reset();
    looked_up(table, rank()).backward();
    reducer.synchronize();
    expect_sparse(table, dense_sum());
  }
  // It is known to be sparse now.
  table.mutable_grad().reset();
  (rank() == 0 ? weighted(table, 3) : looked_up(table, rank())).backward();
  reducer.synchronize();
  expect_sparse(table, dense_sum() - dense_share(0) + 3);
}

TEST(SparseReducer, WeightsScalesAndPasses) {
  const at::Tensor table = table_of();
  GradientReducerOptions options = sparse_options(ReduceOp::Average);
  options.gradient_predivide_factor = 4;
  options.backward_passes_per_step = 2;
  options.average_aggregated_gradients = true;
  GradientReducer reducer({{"table", table}}, options);
  at::Tensor want = at::zeros({kRows, kColumns}, at::kDouble);
  double weights = 0;
  for (int r = 0; r < size(); ++r) {
    const double weight = r == 0 && size() > 1 ? 0 : r + 2;
    want += weight * dense_share(r) * 3 / 2;
    weights += weight;
  }
  for (int step = 1; step <= 2; ++step) {  // without zero_grad
    reducer.set_weight(rank() == 0 && size() > 1 ? 0 : rank() + 2);
    looked_up(table, rank()).backward();
    (looked_up(table, rank()) * 2).backward();
    reducer.synchronize(GradientReducer::Passes::All);
    expect_sparse(table, step * want / weights);
  }
}

TEST(SparseReducer, TheOlderValueStaysIfOneOfNoWeightComes) {
  const at::Tensor table = table_of();
  GradientReducer reducer({{"table", table}}, sparse_options(ReduceOp::Average));
  looked_up(table, rank()).backward();
  reducer.synchronize();
  const at::Tensor older = dense_sum() / size();
  expect_sparse(table, older);
  for (const bool is_dense : {false, true}) {
    reducer.set_weight(rank() == 0 ? 0 : 1);
    if (rank() == 0) (is_dense ? weighted(table, 3) : looked_up(table, 0)).backward();
    reducer.synchronize();
    expect_sparse(table, older);
  }
  looked_up(table, rank()).backward();
  reducer.synchronize();
  expect_sparse(table, 2 * older);
}

// In the middle of a step it is kept aside, where zeroing .grad does not reach it.
TEST(SparseReducer, TheOlderValueIsGoneOnceTheProgramZeroesWhatHasComeSince) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    for (const bool by_optimizer : {true, false}) {
      for (const bool backward_after : {true, false}) {
        const at::Tensor table = table_of();
        GradientReducerOptions options = sparse_options(op);
        options.wait_in = WaitIn::Backward;
        DistributedOptimizer optimizer(::torch::optim::SGD({table}, 1.0), {{"table", table}},
                                       options);
        looked_up(table, rank()).backward();
        {
          const auto quiet = optimizer.no_sync();
          looked_up(table, rank()).backward();
        }
        if (by_optimizer) {
          optimizer.zero_grad(/*set_to_none=*/false);
        } else {
          table.mutable_grad().zero_();
        }
        if (backward_after) looked_up(table, rank()).backward();
        optimizer.synchronize();
        expect_sparse(table, dense_sum() * (backward_after ? 1 : 0) / divisor(op));
      }
    }
  }
}

// A gradient without any rows is none that was zeroed.
TEST(SparseReducer, TheOlderValueStaysUnderAGradientWithoutRows) {
  const at::Tensor table = table_of();
  GradientReducerOptions options = sparse_options(ReduceOp::Sum);
  GradientReducer reducer({{"table", table}}, options);
  looked_up(table, rank()).backward();
  reducer.synchronize();
  const at::Tensor no_rows = at::zeros({0}, at::kLong);
  at::embedding(table, no_rows, -1, false, true).sum().backward();
  looked_up(table, rank()).backward();
  reducer.synchronize();
  expect_sparse(table, 2 * dense_sum());
}

// Also where a new one has come already.
TEST(SparseReducer, TheOlderValueCountsAsNewWhereTheProgramSaysSo) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    for (const bool averages : {false, true}) {
      for (const bool before_backward : {true, false}) {
        const at::Tensor table = table_of();
        GradientReducerOptions options = sparse_options(op);
        options.backward_passes_per_step = 2;
        options.average_aggregated_gradients = averages;
        GradientReducer reducer({{"table", table}}, options);
        for (int pass = 0; pass < 2; ++pass) looked_up(table, rank()).backward();
        reducer.synchronize();
        const at::Tensor first = dense_sum() * (averages ? 1 : 2) / divisor(op);
        expect_sparse(table, first);
        if (before_backward) reducer.count_gradients_as_new();
        looked_up(table, rank()).backward();
        if (!before_backward) reducer.count_gradients_as_new();
        looked_up(table, rank()).backward();
        reducer.synchronize();
        expect_sparse(table, first * size() / divisor(op) + first);
      }
    }
  }
}

// The mean over no samples may be NaN.
TEST(SparseReducer, OneOfNoWeightIsNone) {
  const at::Tensor table = table_of();
  GradientReducer reducer({{"table", table}}, sparse_options(ReduceOp::Average));
  for (const bool has_samples : {true, false}) {
    table.mutable_grad().reset();
    reducer.set_weight(rank() == 0 || !has_samples ? 0 : 1);
    (looked_up(table, 1) * (rank() == 0 ? kNaN : 1)).backward();
    reducer.synchronize();
    if (has_samples && size() > 1) {
      expect_sparse(table, dense_share(1));
    } else {
      EXPECT_FALSE(table.grad().defined());
    }
  }
}

TEST(SparseReducer, StepAfterOneThatFailed) {
  const at::Tensor table = table_of();
  GradientReducer reducer({{"table", table}}, sparse_options(ReduceOp::Average));
  for (int step = 0; step < 2; ++step) {
    if (size() > 1) {
      if (rank() == 0) reducer.set_weight(1);
      looked_up(table, rank()).backward();
      EXPECT_THAT(error_of([&] { reducer.synchronize(); }), HasSubstr("did not call set_weight()"));
      EXPECT_FALSE(table.grad().defined());
    }
    looked_up(table, rank()).backward();
    reducer.synchronize();
    expect_sparse(table, dense_sum() / size());
    table.mutable_grad().reset();
  }
}

TEST(SparseReducer, SixteenBitSumsAreRoundedOnce) {
  const at::Tensor table = table_of(at::kHalf);
  GradientReducer reducer({{"table", table}}, sparse_options(ReduceOp::Average));
  (at::embedding(table, at::tensor({2}, at::kLong), -1, false, true).sum() * 50000).backward();
  reducer.synchronize();
  ASSERT_EQ(table.grad().scalar_type(), at::kHalf);
  EXPECT_NEAR(table.grad().to_dense()[2][0].item<double>(), 50000, 32);
}

TEST(SparseReducer, DroppedAndReplacedByTheProgram) {
  const at::Tensor table = table_of();
  GradientReducer reducer({{"table", table}}, sparse_options(ReduceOp::Sum));
  for (int step = 0; step < 3; ++step) {
    looked_up(table, rank()).backward();
    table.mutable_grad().reset();
    looked_up(table, rank()).backward();
    reducer.synchronize();
    expect_sparse(table, dense_sum());
    table.mutable_grad() = dense_share(rank()).to_sparse(1);
    reducer.synchronize();
    expect_sparse(table, dense_sum());
    table.grad().zero_();
    looked_up(table, rank()).backward();
    reducer.synchronize();
    expect_sparse(table, dense_sum());
    looked_up(table, rank()).backward();  // is added to the older value, and dropped with it
    table.mutable_grad().reset();
    looked_up(table, rank()).backward();
    reducer.synchronize();
    expect_sparse(table, dense_sum());
    looked_up(table, rank()).backward();
    table.mutable_grad().reset();
    reducer.synchronize();
    EXPECT_FALSE(table.grad().defined());
  }
}

// It may be large, and has the rows of all ranks.
TEST(SparseReducer, KeepsNoResultOnceTheProgramHasDroppedIt) {
  const at::Tensor table = table_of();
  GradientReducer reducer({{"table", table}}, sparse_options(ReduceOp::Sum));
  for (int step = 0; step < 2; ++step) {
    looked_up(table, rank()).backward();
    reducer.synchronize();
    expect_sparse(table, dense_sum());
    const c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> result(
        table.grad().getIntrusivePtr());
    table.mutable_grad().reset();
    EXPECT_TRUE(result.expired());
  }
}

TEST(SparseReducer, NotFiniteIsNamed) {
  const at::Tensor table = table_of();
  GradientReducerOptions options = sparse_options(ReduceOp::Sum);
  options.check_finite = true;
  GradientReducer reducer({{"table", table}}, options);
  for (int step = 0; step < 2; ++step) {
    (looked_up(table, rank()) * (rank() == 0 ? std::numeric_limits<double>::infinity() : 1))
        .backward();
    EXPECT_THAT(error_of([&] { reducer.synchronize(); }),
                AllOf(StartsWith(to_string(ErrorCode::InvalidArgument)),
                      HasSubstr("gradient of \"table\" on rank 0")));
    EXPECT_FALSE(table.grad().defined());
    looked_up(table, rank()).backward();
    reducer.synchronize();
    expect_sparse(table, dense_sum());
    table.mutable_grad().reset();
  }
}

}  // namespace
}  // namespace horon::reducer_sparse_test
