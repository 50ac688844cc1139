#include "horon/torch_bindings/gradients/plan.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/negotiation/agreement.h"
#include "horon/core/runtime/submission.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {
namespace {

// Gradients in a bucket; its flags (round_flags.h) are one part more.
constexpr size_t kGradientsMax = core::kPartsMax - 1;

std::vector<int64_t> row_major_strides(at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(1, sizes[i]);
  }
  return strides;
}

std::vector<int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return row_major_strides(parameter.sizes());
}

[[noreturn]] void refuse_group(const std::string& parameter, std::string_view why) {
  throw Error(ErrorCode::InvalidArgument,
              core::concat("groups: parameter \"", parameter, "\" ", why));
}

void check_group(const std::vector<size_t>& group, std::span<const GradientLayout> layouts) {
  for (const size_t slot : group) {
    const GradientLayout& first = layouts[group.front()];
    if (layouts[slot].dtype == first.dtype) continue;
    refuse_group(layouts[slot].name,
                 core::concat("is ", c10::toString(layouts[slot].dtype), ", but \"", first.name,
                              "\" of the same group is ", c10::toString(first.dtype),
                              "; give each dtype a group of its own"));
  }
  if (group.size() > kGradientsMax) {
    throw Error(ErrorCode::Limit,
                core::concat("groups: the group of \"", layouts[group.front()].name, "\" has ",
                             group.size(), " parameters; the limit is ", kGradientsMax));
  }
}

// The group that each slot is in; -1: none.
std::vector<int64_t> group_numbers(size_t slots, const SlotGroups& groups) {
  std::vector<int64_t> numbers(slots, -1);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const size_t slot : groups[group]) numbers[slot] = static_cast<int64_t>(group);
  }
  return numbers;
}

}  // namespace

int64_t GradientLayout::elements() const { return core::element_count(sizes); }

int64_t GradientLayout::bytes() const {
  return elements() * static_cast<int64_t>(c10::elementSize(dtype));
}

std::vector<int64_t> GradientLayout::real_sizes() const {
  std::vector<int64_t> all = sizes;
  if (c10::isComplexType(dtype)) all.push_back(2);
  return all;
}

bool GradientLayout::fits(const at::Tensor& parameter) const {
  return parameter.scalar_type() == dtype && parameter.device() == device &&
         parameter.sizes() == at::IntArrayRef(sizes) &&
         (parameter.strides() == at::IntArrayRef(strides) ||
          gradient_strides(parameter) == strides);
}

std::string GradientLayout::compared_name() const {
  if (strides == row_major_strides(sizes)) return name;
  return core::concat(name, core::kStridesRemark, core::shape_text(strides), ")");
}

GradientLayout layout_of(const at::Tensor& parameter, const std::string& name, ReduceOp op) {
  require_memory(parameter, name);
  check_tensor(parameter.is_complex() ? real_memory(parameter) : parameter, name);
  if (!parameter.is_leaf()) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("parameter \"", name, "\" is the result of an operation, not a leaf"));
  }
  if (parameter.scalar_type() == at::kComplexHalf) {  // LibTorch computes little with it
    throw Error(
        ErrorCode::InvalidArgument,
        core::concat("parameter \"", name, "\" has dtype ComplexHalf, whose gradients ",
                     "can't be reduced; use complex64, with compression to send it in 16 bits"));
  }
  if (parameter.is_complex() && op != ReduceOp::Average && op != ReduceOp::Sum) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("parameter \"", name, "\" is complex, and complex dtypes have no ",
                             to_string(op), "; use Sum or Average"));
  }
  GradientLayout layout{name, parameter.scalar_type(), parameter.sizes().vec(),
                        gradient_strides(parameter), parameter.requires_grad()};
  layout.device = parameter.device();
  return layout;
}

SlotGroups find_groups(const std::vector<std::vector<std::string>>& groups,
                       std::span<const GradientLayout> layouts) {
  std::unordered_map<std::string_view, size_t> by_name;
  for (size_t i = 0; i < layouts.size(); ++i) by_name.emplace(layouts[i].name, i);
  std::vector<bool> taken(layouts.size());
  SlotGroups result;
  for (const std::vector<std::string>& names : groups) {
    if (names.empty()) continue;
    std::vector<size_t>& group = result.emplace_back();
    for (const std::string& name : names) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) {
        refuse_group(name,
                     "is not a parameter of this reducer (a tied one goes by its first name)");
      }
      if (taken[found->second]) refuse_group(name, "is named twice");
      taken[found->second] = true;
      group.push_back(found->second);
    }
    check_group(group, layouts);
  }
  return result;
}

SlotGroups split_into_groups(int count, std::span<const GradientLayout> layouts) {
  SlotGroups result;
  const std::vector<int64_t> lengths =
      core::even_splits(static_cast<int64_t>(layouts.size()), count);
  size_t slot = 0;
  for (const int64_t length : lengths) {
    std::map<at::ScalarType, std::vector<size_t>> of_dtype;
    for (int64_t i = 0; i < length; ++i, ++slot) of_dtype[layouts[slot].dtype].push_back(slot);
    for (auto& [dtype, group] : of_dtype) {
      check_group(group, layouts);
      result.push_back(std::move(group));
    }
  }
  return result;
}

SlotGroups plan_buckets(std::span<const GradientLayout> layouts, const BucketBytes& bytes,
                        const SlotGroups& groups, std::span<const size_t> order) {
  struct Open {
    size_t bucket = 0;
    int64_t filled = 0;
    int64_t cap = 0;
  };
  SlotGroups buckets;
  std::map<std::pair<at::ScalarType, bool>, Open> open_ones;
  std::map<int64_t, size_t> bucket_of_group;
  const std::vector<int64_t> group_of = group_numbers(layouts.size(), groups);
  for (size_t k = 0; k < layouts.size(); ++k) {
    const size_t i = order.empty() ? layouts.size() - 1 - k : order[k];
    if (layouts[i].sparse) {
      buckets.push_back({i});
      continue;
    }
    if (group_of[i] >= 0) {
      const auto [known, is_new] = bucket_of_group.try_emplace(group_of[i], buckets.size());
      if (is_new) buckets.emplace_back();
      buckets[known->second].push_back(i);
      continue;
    }
    const auto [known, is_new] =
        open_ones.try_emplace({layouts[i].dtype, layouts[i].trained}, Open{buckets.size(), 0, 0});
    Open& open = known->second;
    if (is_new) {
      buckets.emplace_back();
      open.cap = bytes.first;
    } else if (open.filled >= open.cap) {
      open = {buckets.size(), 0, bytes.others};
      buckets.emplace_back();
    }
    buckets[open.bucket].push_back(i);
    open.filled += layouts[i].bytes();
    if (buckets[open.bucket].size() == kGradientsMax) open.filled = open.cap;
  }
  return buckets;
}

std::string describe_plan(const SlotGroups& buckets, std::span<const GradientLayout> layouts,
                          const std::string& settings) {
  Fingerprint plan;
  plan.add(settings);
  int64_t elements = 0;
  for (const std::vector<size_t>& bucket : buckets) {
    plan.add("|");
    for (const size_t slot : bucket) {
      const GradientLayout& layout = layouts[slot];
      elements += layout.elements();
      plan.add(core::concat(layout.name, layout.dtype, core::shape_text(layout.sizes),
                            core::shape_text(layout.strides)));
    }
  }
  return core::concat(layouts.size(), " gradients (", elements, " elements) in ", buckets.size(),
                      " buckets, ", settings, ", plan ", std::hex, plan.value());
}

}  // namespace horon::torch_detail
