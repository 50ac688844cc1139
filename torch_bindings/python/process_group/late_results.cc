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
  // Held meanwhile: another thread that waits for a later call finds all of them there too.
  const std::lock_guard lock(mutex_);
  deliver_ended();
}

void LateResults::deliver_ended() {
  operations_.remove_if([](const std::shared_ptr<Operation>& operation) {
    if (!operation->finished()) return false;
    // In a capture its results must not be waited for: they are from outside of the graph.
    const bool is_outside =
        !operation->is_captured() && torch_detail::current_stream_is_captured(operation->device());
    if (is_outside) return false;
    (void)operation->outcome();
    return true;
  });
}

}  // namespace horon::python::process_group
