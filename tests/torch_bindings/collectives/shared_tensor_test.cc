// Tensors in memory that the ranks of a host share.
#include "horon/torch_bindings/collectives/shared_tensor.h"

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::shared_tensor_test {
namespace {

using testing::HasSubstr;
using testing_support::error_of;
using testing_support::expect_equal;
using testing_support::kTensorTypes;
using testing_support::sum_of_all;
using testing_support::values_of;

// Whether other processes may have the mapping that the address lies in.
bool lies_in_shared_mapping(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    size_t end_of_begin = 0;
    const uintptr_t begin = std::stoull(line, &end_of_begin, 16);
    const uintptr_t end = std::stoull(line.substr(end_of_begin + 1), nullptr, 16);
    if (begin <= wanted && wanted < end) return line.at(line.find(' ') + 4) == 's';
  }
  return false;
}

at::Tensor shared_copy(const at::Tensor& values) {
  const at::Tensor tensor = shared_zeros(values.sizes(), values.options());
  tensor.copy_(values);
  return tensor;
}

TEST(SharedZeros, EveryTypeAndShape) {
  for (const at::ScalarType type : kTensorTypes) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {0}, {3, 0, 2}, {2, 3, 5}}) {
      expect_equal(shared_zeros(shape, type), at::zeros(shape, type));
    }
  }
  EXPECT_EQ(shared_zeros({2}).scalar_type(), at::kFloat);
  EXPECT_TRUE(shared_zeros({2}, at::TensorOptions().requires_grad(true)).requires_grad());
  EXPECT_FALSE(shared_zeros({2}).requires_grad());
}

TEST(SharedZeros, OtherRanksOfTheHostSeeTheMemory) {
  EXPECT_FALSE(lies_in_shared_mapping(at::zeros({1 << 20}).data_ptr()));
  if (local_size() == 1) GTEST_SKIP() << "no other rank on this host";
  EXPECT_TRUE(lies_in_shared_mapping(shared_zeros({1 << 20}).data_ptr()));
}

TEST(SharedZeros, MemoryThatIsUsedAgainHoldsZeros) {
  for (int i = 0; i < 3; ++i) {
    const at::Tensor tensor = shared_zeros({1 << 18});
    expect_equal(tensor, at::zeros({1 << 18}));
    tensor.fill_(7);
  }
}

TEST(SharedZeros, CollectivesGiveWhatTheyGiveOnOtherTensors) {
  const int ranks = size();
  for (const int64_t rows : {int64_t{1}, int64_t{40'000}}) {
    const std::vector<int64_t> shape{rows * ranks, 3};
    const at::Tensor mine = values_of(shape, at::kFloat, rank());
    const at::Tensor shared = shared_copy(mine);

    const at::Tensor blocks = shared_zeros(shape);
    (void)alltoall(shared, {.output = blocks});
    expect_equal(blocks, alltoall(mine).tensor);
    const at::Tensor all = shared_zeros({rows * ranks * ranks, 3});
    allgather(shared, {.output = all});
    expect_equal(all, allgather(mine));
    const at::Tensor part = shared_zeros({rows, 3});
    reducescatter(shared, {.op = ReduceOp::Sum, .output = part});
    expect_equal(part, reducescatter(mine, {.op = ReduceOp::Sum}));

    expect_equal(broadcast(shared, {.root = ranks - 1}), values_of(shape, at::kFloat, ranks - 1));
    expect_equal(shared, mine);
    allreduce_(shared, {.op = ReduceOp::Sum});
    expect_equal(shared, sum_of_all(shape, at::kFloat));
  }
}

TEST(SharedZeros, SomeRanksAloneMayHaveThem) {
  const at::Tensor mine = values_of({100'000}, at::kFloat, rank());
  const at::Tensor sum = allreduce(rank() == 0 ? shared_copy(mine) : mine, {.op = ReduceOp::Sum});
  expect_equal(sum, sum_of_all({100'000}, at::kFloat));
}

TEST(SharedZeros, WhatCanNotBeIsNamed) {
  EXPECT_THAT(error_of([] {
                (void)shared_zeros({2, -1});
              }),
              HasSubstr("the shape [2, -1] has an extent below 0"));
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(error_of([&] { (void)shared_zeros({most, 4}); }), HasSubstr("more bytes than"));
  EXPECT_THAT(error_of([&] { (void)shared_zeros({most}, at::kByte); }),
              HasSubstr("more bytes than can be addressed"));
  const auto with_gradient = at::TensorOptions(at::kLong).requires_grad(true);
  EXPECT_THAT(error_of([&] { (void)shared_zeros({2}, with_gradient); }), HasSubstr("no gradient"));
  EXPECT_THAT(error_of([] { (void)shared_zeros({2}, at::kMeta); }),
              HasSubstr("dense tensors on the CPU, not Strided ones on meta"));
  EXPECT_THAT(error_of([] { (void)shared_zeros({2}, at::kSparse); }), HasSubstr("not Sparse ones"));
}

}  // namespace
}  // namespace horon::shared_tensor_test
