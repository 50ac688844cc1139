#include "horon/torch_bindings/collectives/names_in_flight.h"

#include <optional>
#include <thread>
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

void wait_for(const NamedCall& call) {
  const core::HandleState* const handle = call.handle.load(std::memory_order_acquire);
  if (handle == nullptr) {
    std::this_thread::yield();  // another thread is about to submit it
  } else {
    (void)handle->wait(std::nullopt);
  }
}

}  // namespace

std::shared_ptr<NamedCall> NamesInFlight::try_take(uint32_t set, const std::string& name,
                                                   const std::shared_ptr<NamedCall>& call) {
  std::string key = concat(set, " ", name);
  // Calls that were looked at. If everybody else lets go of one meanwhile, it is destroyed here and
  // not under the lock: that frees memory of the program, which may call back.
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
    if (calls_.size() < next_sweep_) return nullptr;
    std::erase_if(calls_, [&](const auto& each) { return has_ended(look_at(each.second)); });
    next_sweep_ = 2 * calls_.size() + kSweepMin;
    return nullptr;
  }
  if (!has_ended(look_at(known->second))) return seen.back();
  known->second = call;
  return nullptr;
}

void NamesInFlight::take(uint32_t set, const std::string& name,
                         const std::shared_ptr<NamedCall>& call) {
  if (try_take(set, name, call) == nullptr) return;
  throw Error(
      ErrorCode::DuplicateName,
      concat("tensor \"", name, "\": a call of this name is in flight; wait for that call, ",
             "or give this one another name"));
}

void NamesInFlight::take_in_turn(uint32_t set, const std::string& name,
                                 const std::shared_ptr<NamedCall>& call) {
  has_counted_ = true;
  while (const std::shared_ptr<NamedCall> before = try_take(set, name, call)) wait_for(*before);
}

void NamesInFlight::wait_until_free(uint32_t set, const std::string& name) {
  const std::string key = concat(set, " ", name);
  for (;;) {
    std::shared_ptr<NamedCall> before;
    {
      const std::lock_guard lock(mutex_);
      const auto known = calls_.find(key);
      if (known == calls_.end()) return;
      before = known->second.lock();
    }
    if (has_ended(before.get())) return;
    wait_for(*before);
  }
}

NamesInFlight& names_in_flight() {
  static auto& names = *new NamesInFlight;  // calls may come while the process ends
  return names;
}

}  // namespace horon::torch_detail
