// Which gradients share a bucket: from dtypes, sizes and the groups that the program has asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"

namespace horon::torch_detail {

// Where the elements of one gradient lie relative to each other: as in the parameter if that is
// dense, else row by row.
struct GradientLayout {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool trained = true;  // required a gradient when the layout was taken
  bool sparse = false;  // its gradients have been sparse, and are to stay so
  c10::Device device{c10::kCPU};

  int64_t elements() const;
  int64_t bytes() const;
  // A complex number travels as two real ones: the dtype, number and sizes of what travels.
  at::ScalarType real_dtype() const { return c10::toRealValueType(dtype); }
  int64_t reals() const { return c10::isComplexType(dtype) ? 2 * elements() : elements(); }
  std::vector<int64_t> real_sizes() const;
  // Whether the parameter still has this dtype, device, shape and strides.
  bool fits(const at::Tensor& parameter) const;
  // The name that ranks compare: those that hold one parameter in different layouts would add
  // unlike elements.
  std::string compared_name() const;
};

// Throws Error(InvalidArgument) naming the parameter if `op` can't reduce its gradients.
GradientLayout layout_of(const at::Tensor& parameter, const std::string& name, ReduceOp op);

// Indices into layouts.
using SlotGroups = std::vector<std::vector<size_t>>;

// The groups by name, as indices. Throws Error(InvalidArgument) naming a parameter that is unknown,
// stands in two groups, or has another dtype than its group.
SlotGroups find_groups(const std::vector<std::vector<std::string>>& groups,
                       std::span<const GradientLayout> layouts);
// `count` groups of neighbours, about equally many in each; more if dtypes differ inside of one.
SlotGroups split_into_groups(int count, std::span<const GradientLayout> layouts);

// How gradients are cut for their collectives.
struct BucketBytes {
  int64_t first = 0;
  int64_t others = 0;
  int64_t piece = 0;  // in which a bucket is reduced: EntrySpec::piece_bytes

  bool operator==(const BucketBytes&) const = default;
};

// The buckets. `order`: in which gradients come, each index once. Empty: backward reaches the last
// parameters first, so it is the reverse of theirs. Each group is a bucket. Other gradients share a
// bucket only with those of their dtype; frozen parameters have buckets of their own, which then
// cost nothing, and so has each sparse gradient. A bucket is closed when it holds `bytes.others`;
// the first one of a dtype at `bytes.first`, so that communication starts early. No gradient is
// split.
SlotGroups plan_buckets(std::span<const GradientLayout> layouts, const BucketBytes& bytes,
                        const SlotGroups& groups, std::span<const size_t> order);

// One line that two ranks share if their buckets are alike, and that shows roughly how they differ
// if not. `settings`: what else must be alike.
std::string describe_plan(const SlotGroups& buckets, std::span<const GradientLayout> layouts,
                          const std::string& settings);

}  // namespace horon::torch_detail
