#include "horon/torch_bindings/python/process_group/operation.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>

#include "horon/core/base/error.h"
#include "horon/core/base/forked_child.h"
#include "horon/core/base/text.h"
#include "horon/core/base/wait_check.h"
#include "horon/core/runtime/runtime.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::python::process_group {
namespace {

using torch_detail::PendingCollective;

// `limit`: from the call to the deadline; the wait may have ended later. `rest` ends the text.
[[noreturn]] void throw_late(const std::string& name, Operation::Clock::duration limit,
                             std::string_view rest) {
  const std::string stalled = is_initialized() ? ops::runtime().stall_report() : "";
  throw Error(ErrorCode::Timeout,
              core::concat("tensor \"", name, "\" has not come within ",
                           std::chrono::duration<double>(limit).count(),
                           " s, the timeout of the call or of its group; ", rest,
                           stalled.empty() ? "" : ". Known so far: ", stalled));
}

// Calls `wait`, with time limits, until it returns true. False: the deadline has passed. In a
// forked child, where nothing goes on, false at once.
template <class Wait>
bool waited_by(Operation::Clock::time_point deadline, Operation::Asks asks, const Wait& wait) {
  const std::chrono::nanoseconds left = deadline - Operation::Clock::now();
  return asks == Operation::Asks::SignalHandlers
             ? core::wait_and_check(left, wait)
             : wait(std::max(left, std::chrono::nanoseconds(0)));
}

bool ended_by(Operation::Clock::time_point deadline, const PendingCollective& pending,
              Operation::Asks asks) {
  return waited_by(deadline, asks,
                   [&](std::chrono::nanoseconds limit) { return pending.state().wait(limit); });
}

}  // namespace

Operation::Operation(::c10d::OpType type, ProfiledCall profiled, const Tensors& outputs,
                     std::chrono::milliseconds timeout, Waits waits)
    : type_(type),
      profiled_(std::move(profiled)),
      timeout_(timeout),
      deadline_(deadline_after(timeout, begin_)),
      waits_(waits) {
  outputs_.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    outputs_.push_back(output.is_sparse() ? output : output.detach());
  }
  if (!outputs.empty()) device_ = outputs.front().device();
}

void Operation::begin(Pending pending, bool alone) {
  pending_.reserve(pending_.size() + 1);
  using Wakes = PendingCollective::Wakes;
  const bool quietly = waits_ == Waits::AtOnce && alone;
  pending->submit_in_turn(pending, quietly ? Wakes::Nobody : Wakes::WhoeverSteps);
  add(std::move(pending));
}

void Operation::add(Pending pending) {
  device_ = pending->device();
  pending_.push_back(std::move(pending));
}

void Operation::work_if_waited_for() const noexcept {
  if (waits_ == Waits::Perhaps) return;
  const auto end = std::min<Clock::time_point>(deadline_, Clock::now() + core::kWaitCheckInterval);
  for (const Pending& pending : pending_) {
    if (!pending->state().finished()) pending->runtime().drive(pending->state(), end);
  }
}

void Operation::wait_until(Clock::time_point deadline, Asks asks) const {
  const Clock::time_point begin = counts_in_wait_ ? Clock::now() : begin_;
  for (const Pending& pending : pending_) {
    if (ended_by(deadline, *pending, asks)) continue;
    if (core::in_forked_child()) return;  // outcome() says why
    // If the time of a future was over before a thread came to it: the group's timeout.
    const Clock::duration limit = deadline > begin ? deadline - begin : timeout_;
    throw_late(pending->name, limit, "the collective goes on");
  }
}

void Operation::wait_for_earlier(const PendingCollective& earlier) const {
  if (ended_by(deadline_, earlier, Asks::SignalHandlers)) return;
  if (core::in_forked_child()) return;  // this one can't begin, which says why
  throw_late(earlier.name, deadline_ - begin_,
             "the later call that waited for it has not begun, since too many are in flight");
}

void Operation::wait_for_turn(const std::function<bool(std::chrono::nanoseconds)>& comes) const {
  if (waited_by(deadline_, Asks::SignalHandlers, comes)) return;
  if (core::in_forked_child()) return;  // as above
  throw Error(
      ErrorCode::Timeout,
      core::concat("a call of a group has waited ",
                   std::chrono::duration<double>(deadline_ - begin_).count(),
                   " s, its timeout, for a call of another thread to begin; it has not begun ",
                   "itself"));
}

void Operation::notify(const std::shared_ptr<core::CompletionQueue>& queue, uint64_t token) const {
  for (const Pending& pending : pending_) pending->state().notify(queue, token);
}

bool Operation::finished() const {
  return std::all_of(pending_.begin(), pending_.end(),
                     [](const Pending& pending) { return pending->state().finished(); });
}

bool Operation::delivers() const {
  return deliver_ != nullptr ||
         std::any_of(pending_.begin(), pending_.end(),
                     [](const Pending& pending) { return pending->copies_back(); });
}

bool Operation::is_captured() const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [](const Pending& pending) { return pending->spec.captured; });
}

void Operation::note_stream_aside() {
  if (!is_captured()) return;
  const std::lock_guard lock(aside_mutex_);
  aside_ = torch_detail::record_current_stream(device_);
}

bool Operation::happened() const {
  const auto has_happened = [](const Pending& pending) {
    core::Event* const done = pending->state().outcome().done.get();
    return done == nullptr || done->happened();
  };
  return std::all_of(pending_.begin(), pending_.end(), has_happened) &&
         (written_ == nullptr || is_captured() || written_->happened());
}

bool Operation::completed() {
  if (!finished()) return false;
  try {
    // Copies that outcome() delivers wait in the current stream, but not for long: the collectives
    // are over.
    return happened() && (outcome() != nullptr || happened());
  } catch (const Error&) {  // the device has failed, as outcome() tells
    return true;
  }
}

std::exception_ptr Operation::outcome() {
  std::call_once(delivered_, [this] {
    try {
      // The program may be in inference mode by now or not: copies work for tensors of both.
      const at::AutoDispatchBelowADInplaceOrView copies_only;
      // Rows may lie in memory of the parent process that a child does not have.
      core::refuse_forked_child();
      for (const Pending& pending : pending_) (void)pending->results();
      if (deliver_) {
        deliver_(pending_);
        for (const at::Tensor& output : outputs_) {  // the entries of a sparse one are new
          if (!output.is_sparse()) torch_detail::note_current_stream(output);
        }
        written_ = torch_detail::record_current_stream(device_);
      }
      for (const Pending& pending : pending_) pending->drop_results();
    } catch (...) {
      fault_ = std::current_exception();
    }
    profiled_.end();
    has_delivered_.store(true, std::memory_order_release);
  });
  if (fault_ != nullptr || device_.is_cpu()) return fault_;
  try {
    follow_in_current_stream();
  } catch (...) {  // what was enqueued has failed since
    return std::current_exception();
  }
  return nullptr;
}

void Operation::follow_in_current_stream() const {
  for (const Pending& pending : pending_) (void)pending->results();
  for (const at::Tensor& output : outputs_) {
    if (!output.is_sparse()) continue;
    // The thread that delivered the entries has made them in its own stream.
    torch_detail::note_current_stream(output._indices());
    torch_detail::note_current_stream(output._values());
  }
  torch_detail::let_current_stream_wait(device_, written_.get());
  const std::lock_guard lock(aside_mutex_);
  torch_detail::let_current_stream_wait(device_, aside_.get());
}

}  // namespace horon::python::process_group
