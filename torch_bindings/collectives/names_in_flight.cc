#include "horon/torch_bindings/collectives/names_in_flight.h"

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

using core::concat;

std::string key(uint32_t set, const std::string& name) { return concat(set, " ", name); }

bool has_ended(const std::weak_ptr<core::HandleState>& call) {
  const std::shared_ptr<core::HandleState> state = call.lock();
  return state == nullptr || state->finished();
}

}  // namespace

void NamesInFlight::refuse_duplicate(uint32_t set, const std::string& name) const {
  {
    const std::lock_guard lock(mutex_);
    const auto known = calls_.find(key(set, name));
    if (known == calls_.end() || has_ended(known->second)) return;
  }
  throw Error(
      ErrorCode::DuplicateName,
      concat("tensor \"", name, "\": a call of this name is in flight; wait for that call, ",
             "or give this one another name"));
}

void NamesInFlight::note(uint32_t set, const std::string& name,
                         const std::shared_ptr<core::HandleState>& call) {
  const std::lock_guard lock(mutex_);
  calls_[key(set, name)] = call;
  if (calls_.size() < next_sweep_) return;
  std::erase_if(calls_, [](const auto& each) { return has_ended(each.second); });
  next_sweep_ = 2 * calls_.size() + kSweepMin;
}

NamesInFlight& names_in_flight() {
  static auto& names = *new NamesInFlight;  // calls may come while the process ends
  return names;
}

}  // namespace horon::torch_detail
