// Elements that Horon can't add: they arrive bit by bit, and under their own type; and tensors that
// it can't send.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <gmock/gmock.h>

#include "horon/core/base/text.h"
#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/autograd.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/finite_check.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/collectives/point_to_point.h"
#include "horon/torch_bindings/collectives/sparse_allreduce.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::moved_types_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::error_of;
using testing_support::expect_equal;

class MovedTypes : public testing::TestWithParam<at::ScalarType> {
 protected:
  // All bits are used, so that any reading as numbers would change some.
  static at::Tensor bits_of(const std::vector<int64_t>& shape, int rank) {
    const int64_t bytes = static_cast<int64_t>(c10::elementSize(GetParam()));
    int64_t count = bytes;
    for (const int64_t extent : shape) count *= extent;
    const at::Tensor pattern = (at::arange(count, at::kLong) * 37 + 101 * rank + 200) % 256;
    return pattern.to(at::kByte).view(GetParam()).view(shape);
  }
  static void expect_bits(const at::Tensor& got, const at::Tensor& want) {
    ASSERT_EQ(got.scalar_type(), GetParam());
    ASSERT_EQ(got.sizes(), want.sizes());
    expect_equal(got.contiguous().view({-1}).view(at::kByte),
                 want.contiguous().view({-1}).view(at::kByte));
  }
  // The same bits as integers.
  static at::Tensor integers_of(const at::Tensor& bits) {
    const size_t bytes = c10::elementSize(GetParam());
    return bits.view(bytes == 1   ? at::kByte
                     : bytes == 2 ? at::kShort
                     : bytes == 4 ? at::kInt
                                  : at::kLong);
  }
  // The tensors of(0), of(1), ... of all ranks, one behind the other.
  static at::Tensor of_all(const std::function<at::Tensor(int)>& of) {
    std::vector<at::Tensor> parts;
    for (int r = 0; r < size(); ++r) parts.push_back(of(r).view(at::kByte));
    return at::cat(parts).view(GetParam());
  }
};

TEST_P(MovedTypes, Broadcast) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {0}, {5}, {3, 4}}) {
    expect_bits(broadcast(bits_of(shape, rank()), {.root = 1}), bits_of(shape, 1));
    at::Tensor in_place = bits_of(shape, rank());
    broadcast_(in_place, {.root = 1});
    expect_bits(in_place, bits_of(shape, 1));
  }
  at::Tensor strided = bits_of({3, 4}, rank()).t();
  broadcast_(strided, {.root = 0});
  EXPECT_FALSE(strided.is_contiguous());
  expect_bits(strided, bits_of({3, 4}, 0).t());
  at::Tensor first = bits_of({2}, rank());
  at::Tensor second = bits_of({3}, rank() + 7);
  grouped_broadcast_({first, second}, {.root = 1});
  expect_bits(first, bits_of({2}, 1));
  expect_bits(second, bits_of({3}, 8));
}

TEST_P(MovedTypes, Blocks) {
  const at::Tensor mine = bits_of({2, 3}, rank());
  const at::Tensor all = of_all([](int r) { return bits_of({2, 3}, r); });
  expect_bits(allgather(mine), all);
  const at::Tensor given = at::empty_like(all);
  EXPECT_EQ(allgather(mine, {.output = given}).data_ptr(), given.data_ptr());
  expect_bits(given, all);
  const at::Tensor to_all = bits_of({2 * size(), 3}, rank());
  expect_bits(alltoall(to_all).tensor, of_all([](int r) {
                return bits_of({2 * size(), 3}, r).slice(0, 2 * rank(), 2 * rank() + 2);
              }));
  expect_bits(scatter(to_all, {.root = 1}),
              bits_of({2 * size(), 3}, 1).slice(0, 2 * rank(), 2 * rank() + 2));
  const at::Tensor gathered = gather(mine, {.root = 1});
  if (rank() == 1) expect_bits(gathered, all);
}

TEST_P(MovedTypes, Messages) {
  if (rank() == 0) send(bits_of({7}, 0), 1);
  if (rank() == 1) expect_bits(recv(bits_of({7}, 1), 0), bits_of({7}, 0));
}

TEST_P(MovedTypes, ParametersOfOneRank) {
  at::Tensor scales = bits_of({4}, rank());
  broadcast_parameters({{"scales", scales}}, 1);
  expect_bits(scales, bits_of({4}, 1));
}

TEST_P(MovedTypes, AreNotReduced) {
  const at::Tensor mine = bits_of({4}, rank());
  const auto says_so = AllOf(HasSubstr("\"weight\""), HasSubstr("can be moved but not reduced"));
  EXPECT_THAT(error_of([&] { allreduce(mine, {.name = "weight"}); }), says_so);
  EXPECT_THAT(error_of([&] { reduce(mine, {.name = "weight"}); }), says_so);
  EXPECT_THAT(error_of([&] { reducescatter(mine, {.name = "weight"}); }), says_so);
  const at::Tensor sparse =
      at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), mine.slice(0, 0, 1), {4});
  EXPECT_THAT(error_of([&] { sparse_allreduce(sparse, {.name = "weight", .op = ReduceOp::Sum}); }),
              says_so);
  expect_equal(allreduce(at::ones({1}), {.op = ReduceOp::Sum}), at::full({1}, double(size())));
}

// They have no derivative: its sum would be refused in backward.
TEST_P(MovedTypes, HaveNoDerivative) {
  EXPECT_FALSE(autograd::broadcast(bits_of({4}, rank()), {.root = 0}).requires_grad());
}

// It is refused although its bits would fit.
TEST_P(MovedTypes, ATypeOfTheSameLengthIsAnotherOne) {
  const at::Tensor mine = bits_of({2}, rank());
  const at::Tensor other = integers_of(mine);
  EXPECT_THAT(error_of([&] { allgather(rank() == 0 ? mine : other, {.name = "a"}); }),
              AllOf(HasSubstr("mismatch"), HasSubstr(c10::toString(GetParam()))));
  const at::Tensor output = integers_of(of_all([](int r) { return bits_of({2}, r); }));
  EXPECT_THAT(error_of([&] { allgather(mine, {.name = "a", .output = output}); }),
              HasSubstr(core::concat("the output is ", output.scalar_type(), ", but the tensor is ",
                                     GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Types, MovedTypes,
                         testing::Values(at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn,
                                         at::kFloat8_e5m2));

// A tensor that is of another class in Python: it has no memory where its elements should be.
at::Tensor without_memory() {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 8, c10::DataPtr(nullptr, at::kCPU));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({2});
  tensor.unsafeGetTensorImpl()->set_python_dispatch(true);
  return tensor;
}

// As the parameters of a model whose shards are freed between steps.
at::Tensor with_freed_memory() {
  const at::Tensor tensor = at::ones({2});
  tensor.storage().set_data_ptr_noswap(c10::DataPtr(nullptr, at::kCPU));
  tensor.storage().set_nbytes(0);
  return tensor;
}

TEST(OtherTensors, AreRefusedWithACureOnEveryRank) {
  const auto refused = [](const at::Tensor& other) {
    return error_of([&] { allreduce(rank() == 0 ? other : at::ones({2}), {.name = "weight"}); });
  };
  const std::string it = rank() == 0 ? "\"weight\": " : "\"weight\" was refused on rank 0: ";
  EXPECT_THAT(refused(without_memory()),
              AllOf(HasSubstr(it + "wraps other tensors"), HasSubstr("to_local()")));
  EXPECT_THAT(refused(at::quantize_per_tensor(at::ones({2}), 0.5, 0, at::kQInt8)),
              AllOf(HasSubstr(it + "has dtype QInt8"), HasSubstr("convert it to float16")));
  EXPECT_THAT(refused(with_freed_memory()), HasSubstr(it + "has elements, but its memory"));
  for (const at::ScalarType type : {at::kFloat, at::kComplexFloat}) {
    const at::Tensor part = at::ones({2}, at::TensorOptions(type));
    EXPECT_THAT(refused(at::_nested_tensor_from_tensor_list({part, part})),
                AllOf(HasSubstr(it + "is nested"), HasSubstr("as a group")));
  }
}

// A scatter takes no rows from ranks other than the root. Some tensors could not give any.
TEST(OtherTensors, AreRefusedByAScatterThatDoesNotReadThem) {
  const at::Tensor rows = at::ones({size(), 2});
  const at::Tensor sparse = rows.to_sparse_csr();
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({rows, rows});
  for (const at::Tensor& other : {sparse, nested}) {
    const at::Tensor& mine = rank() == 0 ? rows : other;
    const auto refused =
        AllOf(HasSubstr(rank() == 0 ? "tensor \"rows\" was refused on rank 1: " : "\"rows\": "),
              HasSubstr("collectives take dense tensors"));
    EXPECT_THAT(error_of([&] { scatter(mine, {.name = "rows"}); }), refused);
    EXPECT_THAT(error_of([&] { grouped_scatter({mine}, {.name = "rows"}); }), refused);
    EXPECT_THAT(error_of([&] { autograd::scatter(mine, {.name = "rows"}); }), refused);
  }
}

TEST(MovedTypes8, AreLookedThroughForNan) {
  const at::Tensor fine = at::ones({3}).to(at::kFloat8_e4m3fn);
  EXPECT_FALSE(found_nonfinite({fine}));
  const at::Tensor bad = at::full({3}, NAN).to(at::kFloat8_e4m3fn);
  EXPECT_TRUE(found_nonfinite({rank() == 1 ? bad : fine}));
}

// As if an operation of LibTorch's had made them, so that autograd lets a program change them.
TEST(ComplexResults, AreNoViews) {
  const at::Tensor mine = at::ones({2}, at::kComplexFloat);
  const at::Tensor weight = at::ones({1}).requires_grad_(true);
  std::vector<at::Tensor> results;
  {
    const at::NoGradGuard no_grad;
    results = {allreduce(mine), broadcast(mine), allgather(mine), reduce(mine)};
  }
  for (at::Tensor& result : results) {
    EXPECT_FALSE(result.is_view());
    result.detach_().mul_(weight);
    EXPECT_TRUE(result.requires_grad());
  }
}

}  // namespace
}  // namespace horon::moved_types_test
