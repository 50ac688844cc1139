#include "horon/torch_bindings/python/process_group/call_order.h"

#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::python::process_group {

CallOrder::CallOrder(const std::string& group, ProcessSet set) : set_(std::move(set)) {
  for (size_t i = 0; i < kNames; ++i) names_[i] = core::concat("c10d.", group, ".", i);
}

void CallOrder::start(Operation& operation, const Start& what,
                      const std::function<void(torch_detail::PendingCollective&)>& fill) {
  const std::lock_guard lock(mutex_);
  const size_t slot = count() % kNames;
  // Gone: the runtime has let go of it, so it has ended.
  const Pending last = last_[slot].lock();
  if (last != nullptr && !last->state().finished()) operation.wait_for_earlier(*last);
  ++count_;
  auto pending = std::make_shared<torch_detail::PendingCollective>(
      what.kind, to_string(what.kind), names_[slot], set_, what.grouped);
  try {
    fill(*pending);
  } catch (const Error&) {  // the other ranks know of it
    throw;
  } catch (...) {  // LibTorch's own errors
    pending->refuse(core::current_error());
  }
  pending->submit(pending);
  last_[slot] = pending;
  operation.add(std::move(pending));
}

}  // namespace horon::python::process_group
