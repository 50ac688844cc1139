#include "horon/torch_bindings/python/process_group/late_results.h"

#include "horon/core/base/forked_child.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::python::process_group {
namespace {

using Operations = std::list<std::shared_ptr<Operation>>;

constexpr size_t kKept = 64;

template <class Is>
void move_if(Operations& from, Operations& to, const Is& is) {
  for (auto next = from.begin(); next != from.end();) {
    const auto operation = next++;
    if (is(**operation)) to.splice(to.end(), from, operation);
  }
}

}  // namespace

void LateResults::add(const std::shared_ptr<Operation>& operation) {
  if (!operation->delivers()) return;
  Operations ended;
  const std::lock_guard lock(mutex_);
  take_delivered(ended);
  operations_.push_back(operation);
  if (operations_.size() > kKept) deliver_ended(ended);  // of a program that waits for none of them
}

void LateResults::deliver() {
  if (core::in_forked_child()) return;  // where the mutex may be held for ever
  Operations ended;
  // The mutex is held during the copies: so another thread that waits for a later call finds all
  // results there, too.
  const std::lock_guard lock(mutex_);
  deliver_ended(ended);
}

void LateResults::forget_delivered() {
  Operations ended;
  // Whoever holds it may want the GIL, which this thread may hold, and removes them itself.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) take_delivered(ended);
}

void LateResults::deliver_ended(Operations& ended) {
  move_if(operations_, ended, [](Operation& operation) {
    if (!operation.finished()) return false;
    // A capturing stream must not wait for results of a call outside the graph.
    const bool is_outside =
        !operation.is_captured() && torch_detail::current_stream_is_captured(operation.device());
    if (is_outside) return false;
    (void)operation.outcome();
    return true;
  });
}

// On a GPU deliver() also makes the current stream wait for them.
void LateResults::take_delivered(Operations& ended) {
  move_if(operations_, ended, [](const Operation& operation) {
    return operation.device().is_cpu() && operation.has_delivered();
  });
}

}  // namespace horon::python::process_group
