#include "horon/torch_bindings/collectives/names_in_flight.h"

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

using core::concat;

bool has_ended(const std::weak_ptr<NamedCall>& call) {
  const std::shared_ptr<NamedCall> known = call.lock();
  if (known == nullptr) return true;
  const core::HandleState* const handle = known->handle.load(std::memory_order_acquire);
  return handle != nullptr && handle->finished();
}

}  // namespace

void NamesInFlight::take(uint32_t set, const std::string& name,
                         const std::shared_ptr<NamedCall>& call) {
  std::string key = concat(set, " ", name);
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = calls_.try_emplace(std::move(key), call);
  if (is_new) {
    if (calls_.size() < next_sweep_) return;
    std::erase_if(calls_, [](const auto& each) { return has_ended(each.second); });
    next_sweep_ = 2 * calls_.size() + kSweepMin;
    return;
  }
  if (!has_ended(known->second)) {
    throw Error(
        ErrorCode::DuplicateName,
        concat("tensor \"", name, "\": a call of this name is in flight; wait for that call, ",
               "or give this one another name"));
  }
  known->second = call;
}

NamesInFlight& names_in_flight() {
  static auto& names = *new NamesInFlight;  // calls may come while the process ends
  return names;
}

}  // namespace horon::torch_detail
