#include "horon/torch_bindings/python/process_group/operation.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <ATen/core/LegacyTypeDispatch.h>

#include "horon/core/base/error.h"
#include "horon/core/base/forked_child.h"
#include "horon/core/base/text.h"
#include "horon/core/base/wait_check.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::python::process_group {
namespace {

using torch_detail::PendingCollective;

// `rest`: what that means.
[[noreturn]] void throw_late(const std::string& name, Operation::Clock::duration waited,
                             std::string_view rest) {
  const std::string stalled = is_initialized() ? ops::runtime().stall_report() : "";
  throw Error(ErrorCode::Timeout,
              core::concat("tensor \"", name, "\" has not come within ",
                           std::chrono::duration<double>(waited).count(),
                           " s, the timeout of the call or of its group; ", rest,
                           stalled.empty() ? "" : ". Known so far: ", stalled));
}

// Whether it has ended by then. In a forked child, where nothing does, false at once.
bool ended_by(Operation::Clock::time_point deadline, const PendingCollective& pending,
              Operation::Asks asks) {
  for (;;) {
    const std::chrono::nanoseconds left = deadline - Operation::Clock::now();
    const std::chrono::nanoseconds some =
        asks == Operation::Asks::SignalHandlers
            ? std::min<std::chrono::nanoseconds>(left, core::kWaitCheckInterval)
            : left;
    if (pending.state().wait(std::max(some, std::chrono::nanoseconds(0)))) return true;
    if (core::in_forked_child() || Operation::Clock::now() >= deadline) return false;
    const core::WaitCheck check = core::wait_check();
    if (asks == Operation::Asks::SignalHandlers && check != nullptr) check();
  }
}

}  // namespace

Operation::Operation(const Tensors& outputs, std::chrono::milliseconds timeout)
    : deadline_(deadline_after(timeout, begin_)) {
  outputs_.reserve(outputs.size());
  for (const at::Tensor& output : outputs) outputs_.push_back(output.detach());
}

void Operation::wait_until(Clock::time_point deadline, Asks asks) const {
  for (const Pending& pending : pending_) {
    if (ended_by(deadline, *pending, asks)) continue;
    if (core::in_forked_child()) return;  // outcome() says why
    throw_late(pending->name, Clock::now() - begin_, "the collective goes on");
  }
}

void Operation::wait_for_earlier(const PendingCollective& earlier) const {
  if (ended_by(deadline_, earlier, Asks::SignalHandlers)) return;
  if (core::in_forked_child()) return;  // this one can't begin, which says why
  throw_late(earlier.name, Clock::now() - begin_,
             "the later call that waited for it has not begun, since too many are under way");
}

void Operation::notify(const std::shared_ptr<core::CompletionQueue>& queue, uint64_t token) const {
  for (const Pending& pending : pending_) pending->state().notify(queue, token);
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
      // Rows may lie in memory of the parent that a child does not have.
      if (core::in_forked_child()) {
        throw Error(ErrorCode::NotInitialized, std::string(core::kForkedChild));
      }
      for (const Pending& pending : pending_) (void)pending->results();
      if (deliver_) deliver_(pending_);
      for (const Pending& pending : pending_) pending->drop_results();
    } catch (...) {
      fault_ = std::current_exception();
    }
  });
  return fault_;
}

}  // namespace horon::python::process_group
