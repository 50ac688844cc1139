#include "horon/torch_bindings/gradients/gradient_norm.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "horon/torch_bindings/tensors/memory_ranges.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {
namespace {

// Each block is added up by itself, then the blocks in their order, whichever threads did them.
constexpr int64_t kBlock = 16'384;
constexpr int64_t kBlocksPerThread = 2;
constexpr int64_t kLanes = 8;  // sums that do not wait for each other

template <class T>
double squares_of_block(const T* values, int64_t count) {
  std::array<double, kLanes> lanes = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[static_cast<size_t>(lane)] += value * value;
    }
  }
  for (; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    lanes[0] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <class T>
double squares_of(const at::Tensor& dense) {
  const auto* const values = static_cast<const T*>(dense.const_data_ptr());
  const int64_t count = dense.numel();
  if (count <= kBlock) return squares_of_block(values, count);
  const at::Tensor blocks = at::empty({(count + kBlock - 1) / kBlock}, at::kDouble);
  auto* const sums = blocks.mutable_data_ptr<double>();
  for_each_range(blocks, kBlocksPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock;
      sums[block] = squares_of_block(values + first, std::min(kBlock, count - first));
    }
  });
  double sum = 0;
  for (int64_t block = 0; block < blocks.numel(); ++block) sum += sums[block];
  return sum;
}

}  // namespace

double sum_of_squares(const at::Tensor& gradient) {
  if (gradient.layout() != at::kStrided) return sum_of_squares(gradient.coalesce().values());
  if (gradient.is_complex()) return sum_of_squares(real_view(gradient));
  if (!gradient.is_non_overlapping_and_dense()) return sum_of_squares(gradient.contiguous());
  switch (gradient.scalar_type()) {
    case at::kFloat:
      return squares_of<float>(gradient);
    case at::kDouble:
      return squares_of<double>(gradient);
    case at::kHalf:
      return squares_of<c10::Half>(gradient);
    case at::kBFloat16:
      return squares_of<c10::BFloat16>(gradient);
    default:
      return squares_of<double>(gradient.to(at::kDouble));
  }
}

at::Tensor norm_on_device(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients) {
    const bool narrow = at::isReducedFloatingType(gradient.scalar_type());
    const at::ScalarType dtype = narrow ? at::kFloat : gradient.scalar_type();
    norms.push_back(
        at::linalg_vector_norm(gradient, 2, std::nullopt, false, dtype).to(at::kDouble));
  }
  return at::linalg_vector_norm(std::get<0>(at::sort(at::stack(norms))));
}

}  // namespace horon::torch_detail
