// More than 2^31 elements in one call: counts that no int holds.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::large_collectives_test {
namespace {

constexpr int64_t kBeyondInt = (int64_t{1} << 31) + 11;

// Needs no second tensor of that size.
void expect_full(const at::Tensor& tensor, int64_t elements, int value) {
  ASSERT_EQ(tensor.numel(), elements);
  EXPECT_EQ(tensor.min().item<int>(), value);
  EXPECT_EQ(tensor.max().item<int>(), value);
}

TEST(Large, Allreduce) {
  at::Tensor x = at::full({kBeyondInt}, rank() + 1, at::kChar);
  x[kBeyondInt - 1] = 5;
  allreduce_(x, {.op = ReduceOp::Sum});
  EXPECT_EQ(x[kBeyondInt - 1].item<int>(), 5 * size());
  x[kBeyondInt - 1] = x[0];
  expect_full(x, kBeyondInt, size() * (size() + 1) / 2);
}

TEST(Large, ResultsOfManyRanksTogether) {
  const int64_t rows = kBeyondInt / size() + 1;
  const at::Tensor mine = at::full({rows}, 7, at::kChar);
  expect_full(allgather(mine), rows * size(), 7);
}

TEST(Large, AlltoallOfOneLargeTensor) {
  at::Tensor x = at::full({kBeyondInt}, 3, at::kChar);
  std::vector<int64_t> splits(static_cast<size_t>(size()), 1);
  splits.front() = kBeyondInt - size() + 1;
  const AlltoallResult got = alltoall(x, {.splits = splits});
  const int64_t expected = rank() == 0 ? splits.front() * size() : size();
  expect_full(got.tensor, expected, 3);
}

}  // namespace
}  // namespace horon::large_collectives_test
