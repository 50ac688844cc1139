#include "horon/torch_bindings/collectives/names_in_flight.h"

#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

using core::concat;

bool has_ended(const NamedCall* call) {
  if (call == nullptr) return true;
  const core::HandleState* const handle = call->handle.load(std::memory_order_acquire);
  return handle != nullptr && handle->finished();
}

}  // namespace

void NamesInFlight::take(uint32_t set, const std::string& name,
                         const std::shared_ptr<NamedCall>& call) {
  std::string key = concat(set, " ", name);
  // Calls that were looked at. If everybody else lets go of one meanwhile, it ends here, and not
  // under the lock: memory of the program goes with it, which may call back.
  std::vector<std::shared_ptr<NamedCall>> seen;
  const auto look_at = [&](const std::weak_ptr<NamedCall>& known) {
    std::shared_ptr<NamedCall> locked = known.lock();
    const NamedCall* const found = locked.get();
    if (locked != nullptr) seen.push_back(std::move(locked));
    return found;
  };
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = calls_.try_emplace(std::move(key), call);
  if (is_new) {
    if (calls_.size() < next_sweep_) return;
    std::erase_if(calls_, [&](const auto& each) { return has_ended(look_at(each.second)); });
    next_sweep_ = 2 * calls_.size() + kSweepMin;
    return;
  }
  if (!has_ended(look_at(known->second))) {
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
