#include "horon/core/runtime/loop_seat.h"

#include <algorithm>

#include "horon/core/base/forked_child.h"
#include "horon/core/base/plain_float_mode.h"
#include "horon/core/base/prompt_thread.h"
#include "horon/core/base/wait_check.h"
#include "horon/core/runtime/handle.h"
#include "horon/core/runtime/runtime_loop.h"

namespace horon::core {
namespace {

// How often the background thread checks that the driver is still there. Only a safety net: a
// driver that stops calls the background thread.
constexpr std::chrono::milliseconds kLookAtDriver{250};
// The same where peers can't ring. There a driver that stops when nothing is under way calls
// nobody, and the background thread must look for messages soon.
constexpr std::chrono::milliseconds kLookAtDriverIfPolling{2};
// The shortest nap of the background thread where naps are dear (base/nap_cost.h). A look then
// finds much to do, and what arrives meanwhile (1.25 MB at 10 Gbit/s) fits into a connection's
// buffers. No thread of this rank waits for the result: one that does drives the loop itself. But
// ranks that wait already lose up to this time in each round of a collective between hosts.
constexpr std::chrono::milliseconds kLeastOfDear{1};
// Only shorter naps are measured: longer ones cost little anyhow.
constexpr std::chrono::milliseconds kLongestNap{2};
// When its handle has finished, a driver goes on until nothing happens, but at most for so many
// turns.
constexpr int kLastTurns = 4;

// Waits for the seat. The background thread frees it after its turn when a driver has announced
// itself. Not a std::timed_mutex: that locks by a call that ThreadSanitizer does not know.
bool lock_until(std::unique_lock<std::mutex>& lock, LoopSeat::Clock::time_point deadline) {
  if (deadline == LoopSeat::kNever) {
    lock.lock();
    return true;
  }
  // Short, because nobody steps the loop between the moment in which the background thread frees
  // the seat and the end of this pause.
  constexpr std::chrono::nanoseconds pause = std::chrono::microseconds(20);
  while (!lock.try_lock()) {
    const std::chrono::nanoseconds left = deadline - LoopSeat::Clock::now();
    if (left.count() <= 0) return false;
    std::this_thread::sleep_for(std::min(pause, left));
  }
  return true;
}

}  // namespace

// Marks this thread from before it takes the seat until after it has freed it: a signal handler
// that runs on it may call exit() at any moment between. The marks form a list, since a callback
// may be inside another seat too, where several ranks are threads of one program.
class LoopSeat::Inside {
 public:
  explicit Inside(const LoopSeat& seat) : seat_(&seat), outer_(innermost_) {
    std::atomic_signal_fence(std::memory_order_release);  // a handler follows the list
    innermost_ = this;
  }
  ~Inside() { innermost_ = outer_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  // This thread's mark for `seat`; null if it is outside.
  static const Inside* of(const LoopSeat& seat) {
    const Inside* one = innermost_;
    while (one != nullptr && one->seat_ != &seat) one = one->outer_;
    return one;
  }

  // This thread sleeps between two turns, so the state of the loop is whole.
  void set_asleep(bool asleep) { asleep_.store(asleep, std::memory_order_relaxed); }
  bool is_asleep() const { return asleep_.load(std::memory_order_relaxed); }

 private:
  const LoopSeat* const seat_;
  const Inside* const outer_;
  std::atomic<bool> asleep_{false};
};

thread_local const LoopSeat::Inside* LoopSeat::innermost_ = nullptr;

bool LoopSeat::held_by_this_thread() const noexcept { return Inside::of(*this) != nullptr; }

// Makes a call that is due, once this thread's lock of the seat is gone: it must outlive the lock.
// A thread that sets `call_is_due_` tries the seat itself afterwards. Either the seat is free, or
// the thread that holds it has not come to its own DueCall yet, so one of the two makes the call.
// The background thread needs no DueCall: it checks whether it is driven before it sleeps.
class LoopSeat::DueCall {
 public:
  explicit DueCall(LoopSeat& seat) : seat_(seat) {}
  ~DueCall() {
    while (seat_.call_is_due_.load(std::memory_order_seq_cst)) {
      const std::unique_lock lock(seat_.mutex_, std::try_to_lock);
      if (!lock.owns_lock()) return;
      // If another thread has made the call, look again: since then a new one may have become due,
      // and the thread that set it has found the seat taken by this one.
      const bool due = seat_.call_is_due_.exchange(false, std::memory_order_seq_cst);
      if (due && seat_.loop_ != nullptr) seat_.loop_->doorbell().call_deputy();
    }
  }
  DueCall(const DueCall&) = delete;
  DueCall& operator=(const DueCall&) = delete;

 private:
  LoopSeat& seat_;
};

// While one lives, the holder is in the plain floating-point mode and announced to the visitor.
class LoopSeat::Held {
 public:
  explicit Held(LoopSeat& seat) : seat_(seat) {
    if (seat_.visitor != nullptr) seat_.visitor->sits_down();
  }
  ~Held() {
    if (seat_.visitor != nullptr) seat_.visitor->gets_up();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  LoopSeat& seat_;
  const PlainFloatMode float_mode_;
};

LoopSeat::LoopSeat() { watch_for_forks(); }

void LoopSeat::open() noexcept {
  open_.store(true, std::memory_order_release);
  open_.notify_all();
}

void LoopSeat::serve(RuntimeLoop& loop) noexcept {
  const Inside inside(*this);
  make_thread_prompt();
  open_.wait(false, std::memory_order_acquire);
  std::unique_lock lock(mutex_);
  loop_ = &loop;
  while (!loop.ended()) {
    if (is_driven()) {
      lock.unlock();
      wait_for_drivers();
      lock.lock();
      continue;
    }
    bool moved = false;
    {
      const Held held(*this);
      (void)loop.doorbell().take();
      moved = loop.turn();
    }
    if (!moved && !loop.ended()) sleep(lock);
  }
  const Held held(*this);
  loop.close();
  loop_ = nullptr;
  over_.store(true, std::memory_order_release);
}

void LoopSeat::wait_for_drivers() noexcept {
  nap_cost_.interrupt();
  // `loop_` is read without the mutex: only this thread writes it.
  Doorbell& doorbell = loop_->doorbell();
  for (;;) {
    const uint32_t calls = doorbell.calls();
    if (!is_driven()) return;
    doorbell.stand_by(calls, loop_->must_poll() ? kLookAtDriverIfPolling : kLookAtDriver);
  }
}

// The background thread has nothing to do.
void LoopSeat::sleep(std::unique_lock<std::mutex>& lock) noexcept {
  RuntimeLoop& loop = *loop_;
  Doorbell& doorbell = loop.doorbell();
  // All are read under the mutex. If a driver could step the loop and call between the reads, its
  // call would be missed and the pause could be too long.
  std::chrono::nanoseconds pause = loop.pause();
  WaitPolicy policy = loop.wait_policy();
  // Naps are short sleeps with a look after each. Where everything rings, only a ring wakes it.
  const bool naps = loop.polls() && pause < kLongestNap;
  const Clock::time_point begin = Clock::now();
  if (naps && nap_cost_.is_dear(begin.time_since_epoch().count())) {
    pause = std::max<std::chrono::nanoseconds>(pause, kLeastOfDear);
    policy.spin = std::chrono::nanoseconds(0);
    policy.look.yields = 0;
  }
  const uint32_t calls = doorbell.calls();
  lock.unlock();
  if (naps) {
    nap_cost_.note_nap(begin.time_since_epoch().count());
  } else {
    nap_cost_.interrupt();
  }
  const bool rung = doorbell.look(pause, policy, driven_);
  lock.lock();
  if (rung || is_driven() || doorbell.calls() != calls) return;
  // A short pause is over by then.
  const std::chrono::nanoseconds left = pause - (Clock::now() - begin);
  if (left > std::chrono::nanoseconds::zero()) {
    doorbell.set_deputy_on_call(true);
    lock.unlock();
    doorbell.stand_by(calls, left);
    if (is_driven()) wait_for_drivers();
    lock.lock();
  }
  const Held held(*this);
  if (!loop.ended()) loop.rested();
}

LoopSeat::Drive LoopSeat::drive(const HandleState& handle, Clock::time_point deadline) noexcept {
  if (is_over() || held_by_this_thread()) return Drive::NoLoop;
  Inside inside(*this);
  if (driven_.exchange(true, std::memory_order_seq_cst)) return Drive::Taken;
  const DueCall due(*this);
  std::unique_lock lock(mutex_, std::defer_lock);
  const bool in_time = lock_until(lock, deadline);
  if (!in_time || loop_ == nullptr) {
    driven_.store(false, std::memory_order_seq_cst);
    // The holder may have freed the seat for this thread, or may have called the background thread,
    // which then believed that this thread drives. A thread that has come since may have gone to
    // sleep in the same belief.
    if (!in_time) call_is_due_.store(true, std::memory_order_seq_cst);
    return in_time ? Drive::NoLoop : Drive::TimedOut;
  }
  const Held held(*this);
  RuntimeLoop& loop = *loop_;
  loop.doorbell().set_deputy_on_call(false);
  PromptTimers prompt;
  bool moved = true;
  bool late = false;
  int last_turns = kLastTurns;
  while (!loop.ended()) {
    (void)loop.doorbell().take();
    moved = loop.turn();
    if (handle.finished()) {
      if (!moved || --last_turns == 0) break;
      continue;
    }
    late = deadline != kNever && Clock::now() >= deadline;
    if (late) break;
    if (moved) continue;
    if (deadline == kNever && wait_check() != nullptr) deadline = Clock::now() + kWaitCheckInterval;
    std::chrono::nanoseconds pause = loop.pause();
    if (deadline != kNever)
      pause = std::min<std::chrono::nanoseconds>(pause, deadline - Clock::now());
    if (loop.polls()) prompt.enable();
    inside.set_asleep(true);
    loop.wait(pause);
    inside.set_asleep(false);
    loop.rested();
  }
  driven_.store(false, std::memory_order_seq_cst);
  hand_over(moved || sleeping_waiters_.load(std::memory_order_seq_cst) > 0);
  return handle.finished() ? Drive::Finished : late ? Drive::TimedOut : Drive::NoLoop;
}

bool LoopSeat::step_now() noexcept {
  if (is_driven() || held_by_this_thread()) return false;
  const Inside inside(*this);
  const DueCall due(*this);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || loop_ == nullptr) return false;
  const Held held(*this);
  loop_->doorbell().set_deputy_on_call(false);
  bool moved = true;
  for (int turns = 0; turns < kLastTurns && moved && !loop_->ended(); ++turns) {
    (void)loop_->doorbell().take();
    moved = loop_->turn();
  }
  hand_over(moved);
  return true;
}

void LoopSeat::end_from_within(const Error& error) noexcept {
  const Inside* const mine = Inside::of(*this);
  if (mine != nullptr && mine->is_asleep()) loop_->end_from_within(error);
}

void LoopSeat::hand_over(bool unfinished) noexcept {
  Doorbell& doorbell = loop_->doorbell();
  if (unfinished || loop_->ended() || loop_->must_be_stepped()) {
    doorbell.call_deputy();
  } else {
    doorbell.set_deputy_on_call(true);
  }
}

}  // namespace horon::core
