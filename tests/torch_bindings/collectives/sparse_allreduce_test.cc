// Sparse tensors of all ranks, added and averaged as their dense forms are; and the question
// whether any of them holds a NaN.
#include "horon/torch_bindings/collectives/sparse_allreduce.h"

#include <chrono>
#include <limits>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/tests/support/mpi_main.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/finite_check.h"

namespace horon::sparse_allreduce_test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

// Rows that all ranks have, rows of one rank, and one that this rank has twice (not coalesced).
at::Tensor table(at::ScalarType dtype, int64_t rows = 20) {
  const at::Tensor indices = at::tensor({0, 7, 1 + rank(), 7}, at::kLong).view({1, 4});
  const at::Tensor values = (at::arange(12.0).view({4, 3}) + 3 * rank()).to(dtype);
  return at::sparse_coo_tensor(indices, values, {rows, 3});
}

void expect_is_dense_result(const at::Tensor& sparse, ReduceOp op, const ProcessSet& set = {}) {
  const at::Tensor result = sparse_allreduce(sparse, {.op = op, .process_set = set});
  const at::Tensor want = allreduce(sparse.to_dense(), {.op = op, .process_set = set});
  EXPECT_TRUE(result.is_coalesced());
  EXPECT_EQ(result.scalar_type(), sparse.scalar_type());
  EXPECT_EQ(result.sparse_dim(), sparse.sparse_dim());
  EXPECT_EQ(result.sizes(), sparse.sizes());
  EXPECT_TRUE(at::allclose(result.to_dense(), want)) << result << want;
}

TEST(SparseAllreduce, IsTheDenseOne) {
  const ProcessSet mine = split_process_set(rank() % 2);
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt,
                                       at::kLong, at::kChar, at::kComplexFloat}) {
      expect_is_dense_result(table(dtype), op);
      expect_is_dense_result(table(dtype), op, mine);
    }
    // Several sparse dimensions, scalars as values, and nothing at all.
    expect_is_dense_result(at::eye(4).mul(rank() + 1).to_sparse(), op);
    expect_is_dense_result((at::eye(4) * (rank() == 0 ? 0 : rank())).to_sparse(), op);
    expect_is_dense_result(at::zeros({3, 2}).to_sparse(1), op);
  }
}

TEST(SparseAllreduce, LeavesItsInputAndAutogradAlone) {
  const at::Tensor sparse = table(at::kFloat).requires_grad_(true);
  const at::Tensor result = sparse_allreduce(sparse);
  EXPECT_FALSE(result.requires_grad());
  EXPECT_FALSE(sparse.is_coalesced());
  EXPECT_EQ(sparse._nnz(), 4);
}

TEST(SparseAllreduce, HandlesMayBeAskedInAnyOrder) {
  SparseHandle first, second;
  const at::Tensor ones = at::eye(3).to_sparse(), twos = at::eye(3).mul(2).to_sparse();
  const auto begin_first = [&] {
    first = sparse_allreduce_async(ones, {.name = "first", .op = ReduceOp::Sum});
  };
  if (rank() % 2 == 0) begin_first();
  second = sparse_allreduce_async(twos, {.name = "second", .op = ReduceOp::Sum});
  if (rank() % 2 != 0) begin_first();
  EXPECT_EQ(second.wait().to_dense().sum().item<double>(), 6 * size());
  EXPECT_TRUE(second.poll());
  EXPECT_TRUE(second.wait().is_same(second.wait()));
  EXPECT_EQ(first.wait(100s).to_dense().sum().item<double>(), 3 * size());
  EXPECT_THAT(error_of([] { SparseHandle().wait(); }), HasSubstr("this handle is empty"));
}

TEST(SparseAllreduce, ATimeoutIsNotTheEnd) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  const SparseHandle go =
      rank() == 0 ? SparseHandle() : sparse_allreduce_async(table(at::kFloat), {.name = "late"});
  if (rank() != 0) {
    EXPECT_FALSE(go.poll());
    EXPECT_THAT(error_of([&] { go.wait(1ms); }),
                AllOf(StartsWith("timeout"), HasSubstr("\"late.indices\"")));
  }
  barrier();
  const at::Tensor result =
      rank() == 0 ? sparse_allreduce(table(at::kFloat), {.name = "late"}) : go.wait();
  EXPECT_EQ(result.size(0), 20);
}

TEST(SparseAllreduce, TheLongestLimitIsNoLimit) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  for (int call = 0; call < 20; ++call) {
    if (rank() == 0) std::this_thread::sleep_for(1ms);  // the others wait by then
    const SparseHandle sum = sparse_allreduce_async(table(at::kFloat), {.name = "endless"});
    EXPECT_EQ(sum.wait(std::chrono::nanoseconds::max()).size(0), 20);
  }
}

TEST(SparseAllreduce, AverageDividesByTheRanksThatAreLeft) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  if (rank() != size() - 1) {
    // Rank 0 counts although it has no entries.
    const at::Tensor own =
        rank() == 0 ? at::zeros({3, 2}).to_sparse(1) : at::ones({3, 2}).to_sparse(1);
    const double want = static_cast<double>(size() - 2) / (size() - 1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(
          at::allclose(sparse_allreduce(own, {.name = "left"}).to_dense(), at::full({3, 2}, want)));
    }
  }
  join();
}

TEST(SparseAllreduce, WrongCallsAndDifferencesAreNamedOnEveryRank) {
  const auto refuse = [](const at::Tensor& tensor, SparseAllreduceOptions options = {}) {
    options.name = "s";
    return error_of([&] { sparse_allreduce(tensor, options); });
  };
  const auto says = [](const char* why) {
    return AllOf(StartsWith("invalid argument"), HasSubstr("\"s\""), HasSubstr(why));
  };
  EXPECT_THAT(refuse(at::ones({2})), says("to_sparse()"));
  EXPECT_THAT(refuse(at::Tensor()), says("undefined"));
  EXPECT_THAT(refuse(at::ones({2}, at::kBool).to_sparse()), says("bool"));
  EXPECT_THAT(refuse(table(at::kFloat), {.op = ReduceOp::Max}), says("Max"));
  if (size() == 1) return;
  const bool last = rank() == size() - 1;
  // One rank alone is wrong: the others hear of it instead of waiting.
  const std::string refused = refuse(last ? at::ones({2}) : table(at::kFloat));
  EXPECT_THAT(refused, HasSubstr("to_sparse()"));
  EXPECT_THAT(refuse(table(at::kFloat, last ? 30 : 20)),
              AllOf(StartsWith("mismatch"), HasSubstr("[20, 3]"), HasSubstr("[30, 3]")));
  EXPECT_THAT(refuse(table(at::kFloat), {.op = last ? ReduceOp::Sum : ReduceOp::Average}),
              AllOf(StartsWith("mismatch"), HasSubstr("Sum"), HasSubstr("Average")));
  EXPECT_THAT(refuse(table(last ? at::kDouble : at::kFloat)),
              AllOf(StartsWith("mismatch"), HasSubstr("float64")));
  EXPECT_THAT(refuse(at::eye(3).to_sparse(last ? 1 : 2)), StartsWith("mismatch"));
  expect_is_dense_result(table(at::kFloat), ReduceOp::Sum);
}

TEST(FoundNonfinite, SameAnswerOnAllRanks) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor good = at::full({1000}, 3e38);  // the sum overflows float32
  const bool last = rank() == size() - 1;
  EXPECT_FALSE(found_nonfinite({}));
  EXPECT_FALSE(found_nonfinite({good, at::ones({2}, at::kLong), at::Tensor(), at::empty({0})}));
  for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      const at::Tensor mine = at::ones({3, 2}, dtype);
      EXPECT_FALSE(found_nonfinite({mine, good}, {.name = "scaled"}));
      if (last) mine[2][1] = bad;
      EXPECT_TRUE(found_nonfinite({good, mine}, {.name = "scaled"}));
      EXPECT_TRUE(found_nonfinite({mine.t().to_sparse()}));
    }
  }
  const at::Tensor complex = at::complex(at::ones({2}), at::full({2}, last ? infinity : 0.0));
  EXPECT_TRUE(found_nonfinite(complex));
  // Ranks may look at different tensors, and each set answers for itself.
  const ProcessSet mine = split_process_set(rank() % 2);
  const std::vector<at::Tensor> own(static_cast<size_t>(rank()), good);
  EXPECT_FALSE(found_nonfinite(own));
  EXPECT_EQ(found_nonfinite(at::full({1}, rank() == 0 ? infinity : 1.0), {.process_set = mine}),
            rank() % 2 == 0);
}

TEST(FoundNonfinite, GoesOnWithoutRanksThatHaveJoined) {
  if (rank() != 0) {
    EXPECT_FALSE(found_nonfinite(at::ones({2})));
    EXPECT_EQ(found_nonfinite(at::full({2}, rank() == 1 ? NAN : 1.0)), true);
  }
  join();
}

}  // namespace
}  // namespace horon::sparse_allreduce_test
