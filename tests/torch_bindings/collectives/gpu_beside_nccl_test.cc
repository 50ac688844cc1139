// Collectives that NCCL does not have, on tensors of GPUs: they go through the memory of the host,
// beside those of NCCL.
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/host_gpu/late_tensors.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"

namespace horon::gpu_beside_nccl_test {
namespace {

using testing_support::expect_equal;
using testing_support::late;
using testing_support::sum_of_all;
using testing_support::values_of;

// The input is an earlier result of NCCL, and later work of the stream reads the result.
TEST(GpuBesideNccl, AdasumStandsInTheOrderOfTheStream) {
  for (int round = 0; round < 5; ++round) {
    const at::Tensor x = late(at::full({3000}, static_cast<float>(rank() + round)));
    allreduce_(x, {.name = "x", .op = ReduceOp::Sum});
    const at::Tensor combined = allreduce(x, {.name = "a", .op = ReduceOp::Adasum}).mul_(2);
    const auto sum = static_cast<float>(size() * (size() - 1) / 2 + size() * round);
    expect_equal(combined.cpu(), at::full({3000}, 2 * sum), 1e-6);  // equal vectors: that vector
    expect_equal(x.cpu(), at::full({3000}, sum));
  }
  EXPECT_EQ(allreduce(late(at::zeros({0})), {.op = ReduceOp::Adasum}).numel(), 0);
}

TEST(GpuBesideNccl, IntegersThatNcclDoesNotAdd) {
  const at::Tensor sum =
      allreduce(late(values_of({5, 7}, at::kShort, rank())), {.op = ReduceOp::Sum});
  EXPECT_TRUE(sum.device() == device());
  expect_equal(sum.cpu(), sum_of_all({5, 7}, at::kShort));

  const at::Tensor mine = late(at::full({9}, 7 * rank(), at::kInt));
  allreduce_(mine, {.op = ReduceOp::Average});
  expect_equal(mine.cpu(), at::full({9}, 7 * (size() - 1) / 2, at::kInt));

  const at::Tensor bits =
      allreduce(late(at::full({40}, 1L << rank(), at::kLong)), {.op = ReduceOp::BitOr});
  expect_equal(bits.cpu(), at::full({40}, (1L << size()) - 1, at::kLong));

  const std::vector<int64_t> shape{2L * size(), 3};
  const at::Tensor share =
      reducescatter(late(values_of(shape, at::kShort, rank())), {.op = ReduceOp::Sum});
  expect_equal(share.cpu(), sum_of_all(shape, at::kShort).slice(0, 2L * rank(), 2L * rank() + 2));
}

TEST(GpuBesideNccl, AGroup) {
  std::vector<at::Tensor> group;
  for (const int64_t extent : {3, 0, 70'000}) {
    group.push_back(late(values_of({extent}, at::kShort, rank())));
  }
  const std::vector<at::Tensor> sums = grouped_allreduce(group, {.op = ReduceOp::Sum});
  for (size_t i = 0; i < group.size(); ++i) {
    expect_equal(sums[i].cpu(), sum_of_all(group[i].sizes().vec(), at::kShort));
  }
}

}  // namespace
}  // namespace horon::gpu_beside_nccl_test
