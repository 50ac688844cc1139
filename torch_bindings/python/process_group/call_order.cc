#include "horon/torch_bindings/python/process_group/call_order.h"

#include <algorithm>
#include <exception>
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
  start_all(operation, what, 1,
            [&](torch_detail::PendingCollective& pending, size_t) { fill(pending); });
}

void CallOrder::start_all(
    Operation& operation, const Start& what, size_t collectives,
    const std::function<void(torch_detail::PendingCollective&, size_t)>& fill) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < std::min(collectives, kNames); ++i) wait_for_name(operation, count() + i);
  std::exception_ptr fault;
  for (size_t i = 0; i < collectives; ++i) {
    if (i >= kNames) wait_for_name(operation, count());
    try {
      start_next(operation, what,
                 [&](torch_detail::PendingCollective& pending) { fill(pending, i); });
    } catch (const Error&) {
      if (fault == nullptr) fault = std::current_exception();
    }
  }
  if (fault != nullptr) std::rethrow_exception(fault);
}

void CallOrder::wait_for_name(const Operation& operation, size_t number) const {
  // Gone: the runtime has let go of it, so it has ended.
  const Pending last = last_[number % kNames].lock();
  if (last != nullptr && !last->state().finished()) operation.wait_for_earlier(*last);
}

void CallOrder::start_next(Operation& operation, const Start& what,
                           const std::function<void(torch_detail::PendingCollective&)>& fill) {
  const size_t slot = count_++ % kNames;
  auto pending = std::make_shared<torch_detail::PendingCollective>(
      what.kind, to_string(what.kind), names_[slot], set_, what.grouped);
  pending->results_are_copied = true;  // into the tensors that torch.distributed gives
  try {
    fill(*pending);
  } catch (const Error&) {  // the other ranks know of it
    throw;
  } catch (...) {  // LibTorch's own errors
    pending->refuse(core::current_error());
  }
  pending->submit_in_turn(pending);
  last_[slot] = pending;
  operation.add(std::move(pending));
}

}  // namespace horon::python::process_group
