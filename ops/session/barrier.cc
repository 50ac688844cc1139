#include "horon/ops/session/barrier.h"

#include <condition_variable>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/text.h"
#include "horon/core/base/wait_check.h"
#include "horon/core/runtime/handle.h"
#include "horon/core/runtime/loop_seat.h"
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

// While it lives, no other thread of this rank is in a barrier() of the set: all have one name.
// They are alike, so it does not matter which comes first.
class Turn {
 public:
  // Throws what wait_check() throws.
  explicit Turn(uint32_t set) : set_(set) {
    std::unique_lock lock(turns().mutex);
    const auto is_next = [&] { return turns().sets.insert(set_).second; };
    while (!turns().next.wait_for(lock, core::kWaitCheckInterval, is_next)) {
      lock.unlock();
      if (const core::WaitCheck check = core::wait_check()) check();
      lock.lock();
    }
  }
  ~Turn() {
    {
      const std::lock_guard lock(turns().mutex);
      turns().sets.erase(set_);
    }
    turns().next.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  struct Turns {
    std::mutex mutex;
    std::condition_variable next;
    std::set<uint32_t> sets;
  };
  static Turns& turns() {
    static auto& all = *new Turns;  // a thread may still wait in it while the process ends
    return all;
  }
  const uint32_t set_;
};

// An asynchronous barrier between its count and its end.
struct UnderWay {
  bool beginning = true;  // its call has not submitted it yet
  std::weak_ptr<core::HandleState> handle;
};

// The asynchronous barriers of each set from the oldest that is under way on: their numbers begin
// again, so no call is counted that would get the number of one of them. Any thread.
class BarriersUnderWay {
 public:
  // The number of the next call, and its place for note(). Waits for the oldest if there are as
  // many as there are numbers.
  std::pair<uint64_t, UnderWay*> take(uint32_t set) {
    for (;;) {
      std::shared_ptr<core::HandleState> oldest;
      {
        const std::lock_guard lock(mutex_);
        std::deque<UnderWay>& calls = calls_of(set);
        if (calls.size() < ops::CallCounts::kNumbers) {
          const uint64_t number = ops::call_counts().next("barrier", set);
          return {number, &calls.emplace_back()};
        }
        oldest = calls.front().handle.lock();
      }
      if (oldest == nullptr) {
        std::this_thread::yield();  // another thread is about to submit it
      } else {
        (void)oldest->wait(std::nullopt);
      }
    }
  }
  // Null: it has not been submitted.
  void note(UnderWay& call, const std::shared_ptr<core::HandleState>& handle) {
    const std::lock_guard lock(mutex_);
    call = {false, handle};
  }

 private:
  // Under the lock.
  std::deque<UnderWay>& calls_of(uint32_t set) {
    const std::pair key{ops::session_number(), set};
    if (!calls_.contains(key)) {  // sets come and go
      for (auto known = calls_.begin(); known != calls_.end();) {
        known = drop_ended(known->second).empty() ? calls_.erase(known) : std::next(known);
      }
    }
    return drop_ended(calls_[key]);
  }
  static std::deque<UnderWay>& drop_ended(std::deque<UnderWay>& calls) {
    const auto has_ended = [](const UnderWay& call) {
      const std::shared_ptr<core::HandleState> handle = call.handle.lock();
      return !call.beginning && (handle == nullptr || handle->finished());
    };
    while (!calls.empty() && has_ended(calls.front())) calls.pop_front();
    return calls;
  }

  std::mutex mutex_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<UnderWay>> calls_;  // of (session, set)
};

BarriersUnderWay& barriers_under_way() {
  static auto& all = *new BarriersUnderWay;  // calls may come while the process ends
  return all;
}

}  // namespace

void barrier(const ProcessSet& process_set) {
  const std::string name = "horon.barrier";
  core::Runtime& runtime = ops::runtime();
  core::refuse_if_banned(name);
  const uint32_t set = process_set.id();
  const Turn turn(set);
  ops::CallCounts& counts = ops::call_counts();
  std::shared_ptr<core::HandleState> call = counts.take_interrupted(name, set);
  if (call == nullptr) {
    call = runtime.submit_quietly(barrier_of(process_set, name));
    runtime.drive(*call, core::LoopSeat::kNever);
  }
  (void)counts.get_or_keep(name, set, call);
}

BarrierHandle barrier_async(const ProcessSet& process_set) {
  core::refuse_if_banned("barrier_async()");  // before it is counted
  core::Runtime& runtime = ops::runtime();
  const auto [number, call] = barriers_under_way().take(process_set.id());
  try {
    const std::shared_ptr<core::HandleState> handle =
        runtime.submit(barrier_of(process_set, core::concat("barrier.noname.", number)));
    barriers_under_way().note(*call, handle);
    return BarrierHandle(handle);
  } catch (...) {
    barriers_under_way().note(*call, nullptr);
    throw;
  }
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
