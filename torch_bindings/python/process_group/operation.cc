#include "horon/torch_bindings/python/process_group/operation.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>

#include "horon/core/base/error.h"
#include "horon/core/base/forked_child.h"
#include "horon/core/base/text.h"
#include "horon/core/base/wait_check.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::python::process_group {
namespace {

[[noreturn]] void throw_late(const std::string& name, Operation::Clock::duration waited) {
  const std::string stalled = is_initialized() ? ops::runtime().stall_report() : "";
  throw Error(ErrorCode::Timeout,
              core::concat("tensor \"", name, "\" has not come within ",
                           std::chrono::duration<double>(waited).count(),
                           " s, the timeout of the call or of its group; the collective goes on",
                           stalled.empty() ? "" : ". Known so far: ", stalled));
}

}  // namespace

Operation::Operation(const Tensors& outputs, std::chrono::milliseconds timeout)
    : deadline_(begin_ + timeout) {
  outputs_.reserve(outputs.size());
  for (const at::Tensor& output : outputs) outputs_.push_back(output.detach());
}

void Operation::wait_until(Clock::time_point deadline, Asks asks) const {
  for (const Pending& pending : pending_) {
    for (;;) {
      const std::chrono::nanoseconds left = deadline - Clock::now();
      const std::chrono::nanoseconds some =
          asks == Asks::SignalHandlers
              ? std::min<std::chrono::nanoseconds>(left, core::kWaitCheckInterval)
              : left;
      if (pending->state().wait(std::max(some, std::chrono::nanoseconds(0)))) break;
      if (core::in_forked_child()) return;  // outcome() says why
      if (Clock::now() >= deadline) throw_late(pending->name, Clock::now() - begin_);
      const core::WaitCheck check = core::wait_check();
      if (asks == Asks::SignalHandlers && check != nullptr) check();
    }
  }
}

bool Operation::finished() const {
  return std::all_of(pending_.begin(), pending_.end(),
                     [](const Pending& pending) { return pending->state().finished(); });
}

std::exception_ptr Operation::outcome() {
  std::call_once(delivered_, [this] {
    try {
      // The program may be in inference mode by now or not: copies work for tensors of both.
      const at::AutoDispatchBelowADInplaceOrView copies_only;
      for (const Pending& pending : pending_) (void)pending->results();
      if (deliver_) deliver_(pending_);
    } catch (...) {
      fault_ = std::current_exception();
    }
  });
  return fault_;
}

}  // namespace horon::python::process_group
