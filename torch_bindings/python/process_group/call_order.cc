#include "horon/torch_bindings/python/process_group/call_order.h"

#include <optional>
#include <utility>

#include "horon/core/base/text.h"

namespace horon::python::process_group {

CallOrder::CallOrder(const std::string& group, ProcessSet set) : set_(std::move(set)) {
  for (size_t i = 0; i < kNames; ++i) names_[i] = core::concat("c10d.", group, ".", i);
}

Pending CallOrder::start(const Start& what,
                         const std::function<void(torch_detail::PendingCollective&)>& fill) {
  const std::lock_guard lock(mutex_);
  const size_t slot = count_ % kNames;
  // Gone: the runtime has let go of it, so it has ended.
  if (const Pending last = last_[slot].lock()) (void)last->state().wait(std::nullopt);
  ++count_;
  auto pending = std::make_shared<torch_detail::PendingCollective>(
      what.kind, to_string(what.kind), names_[slot], set_, what.grouped);
  fill(*pending);
  pending->submit(pending);
  last_[slot] = pending;
  return pending;
}

uint64_t CallOrder::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

}  // namespace horon::python::process_group
