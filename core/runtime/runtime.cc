#include "horon/core/runtime/runtime.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "horon/core/base/all_ranks.h"
#include "horon/core/base/blocked_signals.h"
#include "horon/core/base/collective_ban.h"
#include "horon/core/base/current_error.h"
#include "horon/core/base/forked_child.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/execution/batch_description.h"
#include "horon/core/execution/executor.h"
#include "horon/core/runtime/loop_seat.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/core/runtime/runtime_loop.h"
#include "horon/core/runtime/set_facts.h"
#include "horon/core/runtime/submission_check.h"
#include "horon/core/transport/transport.h"

namespace horon::core {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

}  // namespace

class Runtime::Impl {
 public:
  explicit Impl(Parts parts)
      : config_(std::move(parts.config)),
        topology_(std::move(parts.topology)),
        timeline_(std::move(parts.timeline)),
        step_in_submit_(parts.step_in_submit),
        has_pairs_(parts.make_pair != nullptr),
        devices_of_pair_(std::move(parts.devices_of_pair)),
        transport_(std::move(parts.transport)),
        world_(SetFacts::of(all_ranks(topology_.size), parts.world)),
        loop_({&config_, &topology_, timeline_, transport_.get(), std::move(parts.world),
               std::move(parts.make_set), std::move(parts.make_pair), &seat_->reaper},
              door_) {
    seat_->visitor = std::move(parts.seat_visitor);
    start_thread();
    if (!parts.starts_closed) open();
  }

  void open() noexcept { seat_->open(); }

  std::shared_ptr<HandleState> submit(Submission submission) {
    std::shared_ptr<HandleState> handle = push(std::move(submission));
    if (!step_in_submit_ || !seat_->step_now()) door_.queue.announce();
    return handle;
  }

  std::shared_ptr<HandleState> submit(std::shared_ptr<OpenReceive> receive, Submission submission) {
    refuse_if_banned(submission.name);
    const std::string name = submission.name;
    for (size_t source = 0; source < receive->sources(); ++source) {
      receive->aim(source, name, submission);
      const std::string fault = find_fault(submission);
      if (fault.empty()) continue;
      throw Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": ", fault));
    }
    submission.handle = std::make_shared<HandleState>(seat_);
    std::shared_ptr<HandleState> handle = submission.handle;
    door_.queue.push_quietly(OpenCall{std::move(receive), std::move(submission)});
    if (!step_in_submit_ || !seat_->step_now()) door_.queue.announce();
    return handle;
  }

  std::shared_ptr<HandleState> run(Submission submission) {
    std::shared_ptr<HandleState> handle = push_awaited(std::move(submission));
    drive(*handle, LoopSeat::kNever);
    (void)handle->wait(std::nullopt);
    return handle;
  }

  void drive(const HandleState& handle, Clock::time_point deadline) noexcept {
    if (in_forked_child()) return;  // its parent has the threads that would hold the seat
    if (seat_->drive(handle, deadline) != LoopSeat::Drive::Finished) door_.queue.announce();
  }

  std::shared_ptr<HandleState> push_awaited(Submission submission) {
    submission.awaited = true;
    return push(std::move(submission));
  }

  std::shared_ptr<HandleState> push(Submission submission) {
    refuse_if_banned(submission.name);
    const std::string fault = find_fault(submission);
    if (!fault.empty()) {
      const std::string text = concat("tensor \"", submission.name, "\": ", fault);
      refuse(submission.name, text, submission.set);
      throw Error(ErrorCode::InvalidArgument, text);
    }
    submission.handle = std::make_shared<HandleState>(seat_);
    std::shared_ptr<HandleState> handle = submission.handle;
    door_.queue.push_quietly(std::move(submission));
    return handle;
  }

  void refuse(const std::string& name, const std::string& text, uint32_t set) noexcept {
    if (name.empty() || name.size() > kNameBytesMax) return;  // no rank has such an entry
    try {
      door_.queue.push(Refusal{set, name, text});
    } catch (...) {
      // After shutdown() the entry fails on the others anyway, since this rank has left. Without
      // memory for the refusal they report a stall.
    }
  }

  std::shared_ptr<HandleState> join(uint32_t set) {
    (void)facts_of(set);
    auto handle = std::make_shared<HandleState>(seat_);
    door_.queue.push(JoinCall{set, handle});
    return handle;
  }

  void add_set(uint32_t id, const std::vector<int>& ranks) {
    const auto handle = std::make_shared<HandleState>();
    const auto facts = std::make_shared<Facts>();
    door_.queue.push(AddSetCall{id, ranks, handle, facts});
    (void)handle->get();
    if (*facts == nullptr) return;
    const std::lock_guard lock(sets_mutex_);
    sets_[id] = *facts;
  }

  void remove_set(uint32_t id) {
    const auto handle = std::make_shared<HandleState>();
    leave_set(id, handle);
    (void)handle->get();
  }

  void leave_set(uint32_t id, std::shared_ptr<HandleState> handle) {
    {
      const std::lock_guard lock(sets_mutex_);
      sets_.erase(id);
    }
    door_.queue.push(RemoveSetCall{id, std::move(handle)});
  }

  void fail(const Error& error) noexcept {
    // A signal handler that calls exit() may stand where this thread has locked the queue. The
    // shutdown() that comes next ends the job from within.
    if (is_within()) return;
    try {
      door_.queue.push(FailCall{error});
    } catch (...) {
      // The job has ended already, or there is no memory for the call.
    }
  }

  std::string shutdown(nanoseconds deadline, nanoseconds farewell) {
    const std::lock_guard lock(shutdown_mutex_);
    const Clock::time_point end_of_farewell = Clock::now() + farewell;
    if (!thread_.joinable()) return "";
    if (is_within()) return leave_from_within();
    open();
    try {
      door_.queue.push(ShutdownCall{});
    } catch (...) {
      // The job has ended already, or there is no memory: then this rank leaves at the deadline.
    }
    door_.queue.close(door_.shut_down);
    door_.limit_ns = deadline.count();
    door_.deadline_ns = (Clock::now() + deadline).time_since_epoch().count();
    door_.leaving = true;
    transport_->ring();
    thread_.join();
    if (const auto fatal = fatal_error()) {
      if (farewell.count() > 0 && fatal->code() != ErrorCode::PeerDead) {
        loop_.wait_for_farewells(end_of_farewell);
      }
      transport_->abandon();
    }
    transport_.reset();
    seat_->reaper.release();
    try {
      if (timeline_ != nullptr) timeline_->flush();
    } catch (...) {
      log(LogLevel::Warn, concat("the timeline's end is lost: ", current_error().what()));
    }
    return loop_.shutdown_report();
  }

  bool left_from_within() const noexcept { return left_from_within_; }
  void release_finished() { seat_->reaper.release(); }

  std::shared_ptr<const Error> fatal_error() const {
    const std::lock_guard lock(door_.mutex);
    return door_.fatal;
  }

  void require_member(uint32_t set) const { (void)facts_of(set); }
  std::string unavailable(uint32_t set, DeviceKind device) const {
    return facts_of(set)->devices[static_cast<size_t>(device)].unavailable;
  }
  bool is_mixed(uint32_t set, DeviceKind device) const {
    return facts_of(set)->devices[static_cast<size_t>(device)].mixed;
  }
  PieceSizes piece_sizes(uint32_t set, const EntrySpec& like) const {
    const auto facts = facts_of(set);
    Batch batch = describe_batch(like, static_cast<int>(facts->ranks.size()), facts->ranks);
    batch.count = element_count(like);
    return facts->runnable->piece_sizes(batch);
  }

  std::string stall_report() const {
    const std::lock_guard lock(door_.mutex);
    return door_.stall_report;
  }

  Statistics statistics() const { return door_.statistics.read(); }

  const Config config_;
  const Topology topology_;
  const std::shared_ptr<Timeline> timeline_;
  const bool step_in_submit_;
  const bool has_pairs_;
  const std::function<RankDevices(const std::vector<int>&)> devices_of_pair_;  // null: the host's

 private:
  using Facts = std::shared_ptr<const SetFacts>;

  std::string find_fault(const Submission& submission) const {
    const Facts set = facts_of(submission.set);
    return core::find_fault(submission, topology_.rank, set->ranks, set->devices, *set->runnable);
  }

  // This thread steps the loop, or hands it a call, or is in line for that.
  bool is_within() const noexcept {
    return seat_->held_by_this_thread() || door_.queue.held_by_this_thread();
  }

  // exit() was called by such a thread, in a signal handler most often. It will never give the seat
  // or the queue back, so there is no end to wait for.
  std::string leave_from_within() {
    const std::string text = "exit() was called while this thread was in a collective";
    left_from_within_ = true;
    thread_.detach();
    seat_->end_from_within(Error(ErrorCode::PeerDead, concat("rank ", topology_.rank, ": ", text)));
    return text;
  }

  void start_thread() {
    const BlockedSignals blocked;  // the thread inherits them
    try {
      thread_ = std::thread([this] { seat_->serve(loop_); });
    } catch (const std::system_error& error) {
      throw Error(ErrorCode::Limit,
                  concat("the background thread can't be started: ", error.what()));
    }
  }

  // What a pair runs on is made later, in the loop.
  Facts facts_of_pair(std::vector<int> ranks) const {
    auto facts = std::make_shared<SetFacts>();
    facts->devices = devices_of_pair_ == nullptr ? host_alone() : devices_of_pair_(ranks);
    facts->ranks = std::move(ranks);
    facts->runnable = std::make_shared<const RunnableCalls>(nullptr);
    return facts;
  }

  Facts facts_of(uint32_t set) const {
    if (set == kWorldSet) return world_;
    const std::lock_guard lock(sets_mutex_);
    auto known = sets_.find(set);
    if (known == sets_.end() && has_pairs_ && is_pair_set(set)) {
      known = sets_.emplace(set, facts_of_pair(members_of_pair(set, topology_.size))).first;
    }
    if (known == sets_.end() || !std::binary_search(known->second->ranks.begin(),
                                                    known->second->ranks.end(), topology_.rank)) {
      throw Error(ErrorCode::InvalidArgument,
                  concat("rank ", topology_.rank, " is not in ", set_text(set),
                         ", or the set has been removed"));
    }
    return known->second;
  }

  std::mutex shutdown_mutex_;
  std::atomic<bool> left_from_within_{false};
  std::unique_ptr<Transport> transport_;
  const Facts world_;
  mutable std::mutex sets_mutex_;
  mutable std::map<uint32_t, Facts> sets_;  // the others that this rank is in
  const std::shared_ptr<LoopSeat> seat_ = std::make_shared<LoopSeat>();
  mutable RuntimeDoor door_{[this] { transport_->ring(); }};
  RuntimeLoop loop_;
  std::thread thread_;
};

Runtime::Runtime(Parts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}

Runtime::~Runtime() {
  const auto limit = std::chrono::duration<double>(impl_->config_.shutdown_timeout_s);
  shutdown(std::chrono::duration_cast<nanoseconds>(limit));
}

std::shared_ptr<HandleState> Runtime::submit(Submission submission) {
  return impl_->submit(std::move(submission));
}
std::shared_ptr<HandleState> Runtime::submit(std::shared_ptr<OpenReceive> receive,
                                             Submission submission) {
  return impl_->submit(std::move(receive), std::move(submission));
}
std::shared_ptr<HandleState> Runtime::run(Submission submission) {
  return impl_->run(std::move(submission));
}
std::shared_ptr<HandleState> Runtime::submit_quietly(Submission submission) {
  return impl_->push_awaited(std::move(submission));
}
void Runtime::drive(const HandleState& handle, Clock::time_point deadline) noexcept {
  impl_->drive(handle, deadline);
}
void Runtime::open() noexcept { impl_->open(); }
bool Runtime::left_from_within() const noexcept { return impl_->left_from_within(); }
void Runtime::release_finished() { impl_->release_finished(); }
void Runtime::refuse(const std::string& name, const std::string& text, uint32_t set) noexcept {
  impl_->refuse(name, text, set);
}
std::shared_ptr<HandleState> Runtime::join(uint32_t set) { return impl_->join(set); }
void Runtime::add_set(uint32_t id, const std::vector<int>& ranks) { impl_->add_set(id, ranks); }
void Runtime::remove_set(uint32_t id) { impl_->remove_set(id); }
void Runtime::leave_set(uint32_t id) { impl_->leave_set(id, nullptr); }
void Runtime::fail(const Error& error) noexcept { impl_->fail(error); }
std::string Runtime::shutdown(nanoseconds deadline, nanoseconds farewell) {
  return impl_->shutdown(deadline, farewell);
}
std::shared_ptr<const Error> Runtime::fatal_error() const { return impl_->fatal_error(); }
void Runtime::require_member(uint32_t set) const { impl_->require_member(set); }
PieceSizes Runtime::piece_sizes(uint32_t set, const EntrySpec& like) const {
  return impl_->piece_sizes(set, like);
}

std::string Runtime::unavailable(uint32_t set, DeviceKind device) const {
  return impl_->unavailable(set, device);
}

bool Runtime::is_mixed(uint32_t set, DeviceKind device) const {
  return impl_->is_mixed(set, device);
}

std::string Runtime::stall_report() const { return impl_->stall_report(); }
Statistics Runtime::statistics() const { return impl_->statistics(); }
const Config& Runtime::config() const { return impl_->config_; }
const Topology& Runtime::topology() const { return impl_->topology_; }
Timeline* Runtime::timeline() const { return impl_->timeline_.get(); }

}  // namespace horon::core
