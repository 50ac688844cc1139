#include "horon/torch_bindings/python/process_group/late_results.h"

#include "horon/core/base/forked_child.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::python::process_group {
namespace {

constexpr size_t kKept = 64;

}  // namespace

void LateResults::add(const std::shared_ptr<Operation>& operation) {
  if (!operation->delivers()) return;
  const std::lock_guard lock(mutex_);
  operations_.push_back(operation);
  if (operations_.size() > kKept) deliver_ended();  // of a program that waits for none of them
}

void LateResults::deliver() {
  if (core::in_forked_child()) return;  // where the mutex may be held for ever
  // The mutex is held during the copies: so another thread that waits for a later call finds all
  // results there, too.
  const std::lock_guard lock(mutex_);
  deliver_ended();
}

void LateResults::deliver_ended() {
  operations_.remove_if([](const std::shared_ptr<Operation>& operation) {
    if (!operation->finished()) return false;
    // A capturing stream must not wait for results of a call outside the graph.
    const bool is_outside =
        !operation->is_captured() && torch_detail::current_stream_is_captured(operation->device());
    if (is_outside) return false;
    (void)operation->outcome();
    return true;
  });
}

}  // namespace horon::python::process_group
