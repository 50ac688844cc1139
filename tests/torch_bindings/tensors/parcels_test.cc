// Which tensors travel together.
#include "horon/torch_bindings/tensors/parcels.h"

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace horon::parcels_test {
namespace {

using torch_detail::in_parcels;
using torch_detail::in_parcels_of;
using Parcels = std::vector<std::vector<at::Tensor>>;

std::vector<int64_t> numbers_in(const Parcels& parcels) {
  std::vector<int64_t> numbers;
  for (const auto& parcel : parcels) {
    int64_t in_parcel = 0;
    for (const at::Tensor& tensor : parcel) in_parcel += tensor.numel();
    numbers.push_back(in_parcel);
  }
  return numbers;
}

// Behind one another: each element once, in the order of the tensors.
at::Tensor values_in(const Parcels& parcels) {
  std::vector<at::Tensor> all;
  for (const auto& parcel : parcels) {
    for (const at::Tensor& tensor : parcel) all.push_back(tensor.reshape({-1}));
  }
  return at::cat(all);
}

TEST(Parcels, OfEqualLengthAreCutBetweenRows) {
  const at::Tensor long_one = at::arange(100, at::kFloat).view({50, 2});
  const at::Tensor turned = at::arange(40, at::kFloat).view({4, 10}).t();  // 10 rows
  const at::Tensor scalar = at::full({}, 7, at::kFloat);
  const std::vector<at::Tensor> tensors{long_one, turned, scalar};
  const Parcels parcels = in_parcels_of(64 * 4, tensors);
  EXPECT_EQ(numbers_in(parcels), (std::vector<int64_t>{64, 64, 13}));
  EXPECT_TRUE(values_in(parcels).equal(
      at::cat({long_one.flatten(), turned.reshape({-1}), scalar.view({1})})));
  parcels[1].front().zero_();
  EXPECT_EQ(long_one[49][1].item<float>(), 0) << "a part is no copy";
  EXPECT_EQ(long_one[31][1].item<float>(), 63);
}

TEST(Parcels, WhatLittleIsLeftOfOneIsNotWorthACut) {
  const std::vector<at::Tensor> tensors{at::zeros({63, 1}), at::zeros({20, 1})};
  EXPECT_EQ(numbers_in(in_parcels_of(64 * 4, tensors)), (std::vector<int64_t>{63, 20}));
}

TEST(Parcels, ARowMayBeLongerThanOne) {
  std::vector<at::Tensor> tensors{at::zeros({1, 1000})};
  for (int i = 0; i < 7; ++i) tensors.push_back(at::zeros({1, 32}));
  tensors.push_back(at::zeros({3, 100}));
  EXPECT_EQ(numbers_in(in_parcels_of(64 * 4, tensors)),
            (std::vector<int64_t>{1000, 64, 64, 64, 32, 100, 100, 100}));
}

TEST(Parcels, OfEachDtypeAndNotOfTooManyTensors) {
  const std::vector<at::Tensor> tensors{at::zeros({2}), at::zeros({2}, at::kDouble),
                                        at::zeros({3})};
  for (const Parcels& parcels : {in_parcels(tensors), in_parcels_of(64, tensors)}) {
    EXPECT_EQ(numbers_in(parcels), (std::vector<int64_t>{5, 2}));
  }
  std::vector<at::Tensor> many(1030, at::zeros({}));
  many.insert(many.end(), 2000, at::zeros({0, 3}));
  for (const Parcels& parcels : {in_parcels(many), in_parcels_of(1 << 20, many)}) {
    ASSERT_EQ(parcels.size(), 3U);
    EXPECT_EQ(parcels[0].size(), 1024U);
    EXPECT_EQ(parcels[1].size(), 1024U);
  }
}

TEST(Parcels, OfNothingAndOfWhatHasNoRows) {
  EXPECT_TRUE(in_parcels_of(64, {}).empty());
  const Parcels parcels = in_parcels_of(64, {at::zeros({0, 5}), at::zeros({5, 0}), at::zeros({2})});
  ASSERT_EQ(parcels.size(), 1U);
  EXPECT_EQ(parcels[0].size(), 3U);
  EXPECT_FALSE(in_parcels_of(64, {at::zeros({4}).requires_grad_()})[0][0].requires_grad());
}

}  // namespace
}  // namespace horon::parcels_test
