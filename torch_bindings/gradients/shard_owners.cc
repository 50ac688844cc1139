#include "horon/torch_bindings/gradients/shard_owners.h"

#include <algorithm>
#include <utility>

namespace horon::torch_detail {
namespace {

// 0 for parameters that the reducer refuses by their names.
int64_t bytes_of(const at::Tensor& parameter) {
  const bool counts = parameter.defined() && parameter.layout() == at::kStrided;
  return counts ? static_cast<int64_t>(parameter.nbytes()) : 0;
}

}  // namespace

ShardOwners::ShardOwners(const ProcessSet& set)
    : ranks_(set.ranks()),
      own_member_(static_cast<size_t>(set.rank())),
      trained_bytes_(ranks_.size()),
      frozen_bytes_(ranks_.size()) {}

// Frozen parameters are shared out apart: they have no state, and may be many.
void ShardOwners::add(const NamedTensors& parameters) {
  std::vector<at::Tensor> trained, frozen;
  for (const auto& [name, parameter] : parameters) {
    const bool is_new = members_.emplace(parameter.unsafeGetTensorImpl(), 0).second;
    if (is_new) (parameter.requires_grad() ? trained : frozen).push_back(parameter);
  }
  share_out(trained, trained_bytes_);
  share_out(frozen, frozen_bytes_);
}

void ShardOwners::add_for(const NamedTensors& parameters, const std::function<void()>& use) {
  ShardOwners before = *this;
  add(parameters);
  try {
    use();
  } catch (...) {
    *this = std::move(before);
    throw;
  }
}

// The longest first, each to the member that has the fewest bytes so far.
void ShardOwners::share_out(std::span<const at::Tensor> added, std::vector<int64_t>& bytes) {
  std::vector<at::Tensor> by_length(added.begin(), added.end());
  std::stable_sort(
      by_length.begin(), by_length.end(),
      [](const at::Tensor& a, const at::Tensor& b) { return bytes_of(a) > bytes_of(b); });
  for (const at::Tensor& parameter : by_length) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += bytes_of(parameter);
    members_[parameter.unsafeGetTensorImpl()] = static_cast<size_t>(least - bytes.begin());
  }
}

std::shared_ptr<ShardOwners> share_out(const NamedTensors& parameters, const ProcessSet& set) {
  if (!set.includes_me() || set.size() == 1) return nullptr;
  auto owners = std::make_shared<ShardOwners>(set);
  owners->add(parameters);
  return owners;
}

}  // namespace horon::torch_detail
