// Which rank keeps the optimizer's state of a parameter, and with shard_gradients gets its reduced
// gradient.
//
// All ranks find the same without asking each other, from the same parameters in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/tensors/named_tensors.h"

namespace horon::torch_detail {

class ShardOwners {
 public:
  // Among the ranks of the set, of which this is one.
  explicit ShardOwners(const ProcessSet& set);

  // Shares out those that are new; the others keep their owners.
  void add(const NamedTensors& parameters);
  // The same, and calls `use`. If that throws, perhaps on this rank alone, the parameters are taken
  // out again.
  void add_for(const NamedTensors& parameters, const std::function<void()>& use);

  const std::vector<int>& ranks() const { return ranks_; }
  int me() const { return ranks_[own_member_]; }
  // The owner's index among the ranks. Throws std::out_of_range for a parameter that is not known.
  size_t member_of(const at::Tensor& parameter) const {
    return members_.at(parameter.unsafeGetTensorImpl());
  }
  size_t own_member() const { return own_member_; }
  // Of a TensorImpl; what is not known belongs to nobody.
  bool belongs_to(const void* parameter, int rank) const {
    const auto found = members_.find(parameter);
    return found != members_.end() && ranks_[found->second] == rank;
  }
  // Also true for a parameter that is not known.
  bool is_own(const void* parameter) const {
    const auto found = members_.find(parameter);
    return found == members_.end() || found->second == own_member_;
  }

 private:
  void share_out(std::span<const at::Tensor> added, std::vector<int64_t>& bytes);

  std::vector<int> ranks_;
  size_t own_member_;
  std::unordered_map<const void*, size_t> members_;
  std::vector<int64_t> trained_bytes_, frozen_bytes_;  // [member]: of the parameters it owns
};

// The owners of these parameters; null if this rank has nobody in the set to share them with.
std::shared_ptr<ShardOwners> share_out(const NamedTensors& parameters, const ProcessSet& set);

}  // namespace horon::torch_detail
