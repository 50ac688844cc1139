#include "horon/ops/session/barrier.h"

#include <string>
#include <utility>

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/text.h"
#include "horon/core/base/wait_check.h"
#include "horon/core/runtime/handle.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon {
namespace {

core::Submission barrier_of(const ProcessSet& process_set, std::string name) {
  static const auto spec = [] {
    auto out = std::make_shared<core::EntrySpec>();
    out->kind = CollectiveKind::Barrier;
    return out;
  }();
  core::Submission submission;
  submission.set = process_set.id();
  submission.name = std::move(name);
  submission.spec = spec;
  return submission;
}

}  // namespace

void barrier(const ProcessSet& process_set) {
  (void)ops::runtime().run(barrier_of(process_set, "horon.barrier"))->get();
}

BarrierHandle barrier_async(const ProcessSet& process_set) {
  core::refuse_if_banned("barrier_async()");  // before it is counted
  const uint64_t number = ops::call_counts().next("barrier", process_set.id());
  return BarrierHandle(
      ops::runtime().submit(barrier_of(process_set, core::concat("barrier.noname.", number))));
}

BarrierHandle::BarrierHandle(std::shared_ptr<core::HandleState> state) : state_(std::move(state)) {}

const core::HandleState& BarrierHandle::state() const {
  if (state_ == nullptr) {
    throw Error(ErrorCode::InvalidArgument,
                "this BarrierHandle is empty; take one from barrier_async()");
  }
  return *state_;
}

bool BarrierHandle::poll() const { return state().finished(); }

void BarrierHandle::wait() const { (void)state().get(); }

void BarrierHandle::wait(std::chrono::nanoseconds timeout) const {
  const auto ends = [this](std::chrono::nanoseconds limit) { return state().wait(limit); };
  if (core::wait_and_check(timeout, ends)) return wait();
  const std::string stalled = is_initialized() ? ops::runtime().stall_report() : "";
  throw Error(ErrorCode::Timeout, core::concat("not all ranks have come to the barrier within ",
                                               std::chrono::duration<double>(timeout).count(),
                                               " s; it goes on, and wait() may be called again",
                                               stalled.empty() ? "" : ". Known so far: ", stalled));
}

}  // namespace horon
