// What it costs a waiting thread to give its core up.
//
// A yield costs little if this thread has the core to itself, or if the others on it wait too.
// Beside a thread that computes it costs that thread's whole time slice, some milliseconds; a
// thread that sleeps instead runs again soon after it is woken.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace horon::core {

// How long a thread looks before it sleeps: for so many yields at least, and for so long at least,
// unless its deadline comes first or yields turn out to be dear.
// A yield that finds nobody else on the core is over in a fraction of a microsecond, and as long as
// that is so, looking takes nothing from anybody. Beside other threads that wait, each yield lets
// one of them run. To fall asleep and be woken takes 30 to 100 us, and the peer waits as long: if
// it looked for no longer than that, it would fall asleep too, and each call would wake both.
struct Look {
  int yields = 20;  // 0: it does not look
  std::chrono::nanoseconds time = std::chrono::microseconds(150);
};

// Remembers across waits whether yields were dear: took kDear or longer. Any number of threads may
// share one: updates may get lost, since it only holds an estimate. Valid as zeroed memory.
class YieldCost {
 public:
  using Clock = std::chrono::steady_clock;

  // Yields until `done` says yes, the deadline has passed or this has lasted long enough. True if
  // `done`.
  template <class Done>
  bool look(const Done& done, const Look& look, Clock::time_point deadline) noexcept {
    if (done()) return true;
    if (look.yields == 0 || !worth_trying()) return false;
    const Clock::time_point begin = Clock::now();
    if (begin >= deadline) return false;
    Clock::time_point now = begin;
    for (int i = 0; i < look.yields || now - begin < look.time; ++i) {
      now = yield(now);
      if (done()) return true;
      if (now >= deadline || dear()) return false;
    }
    return false;
  }

  // Asked once in each wait, before its first yield. False for some waits after a dear yield, and
  // for more of them the more often yields are dear.
  bool worth_trying() noexcept {
    const uint32_t left = waits_without_.load(std::memory_order_relaxed);
    if (left == 0) return true;
    waits_without_.store(left - 1, std::memory_order_relaxed);
    return false;
  }

  // Yields, and returns what the clock says afterwards. `before`: now.
  Clock::time_point yield(Clock::time_point before) noexcept {
    std::this_thread::yield();
    const Clock::time_point after = Clock::now();
    note(after - before);
    return after;
  }
  // True from a dear yield until several cheap ones.
  bool dear() const noexcept { return next_.load(std::memory_order_relaxed) > 0; }

  void note(Clock::duration took) noexcept {
    const uint32_t last = next_.load(std::memory_order_relaxed);
    if (took < kDear) {
      if (last > 0) next_.store(last / 2, std::memory_order_relaxed);
      return;
    }
    const uint32_t waits = std::clamp(2 * last, kFirst, kMost);
    next_.store(waits, std::memory_order_relaxed);
    waits_without_.store(waits, std::memory_order_relaxed);
  }

 private:
  // Far more than a switch to another thread that waits and back, far less than a time slice.
  static constexpr std::chrono::microseconds kDear{300};
  static constexpr uint32_t kFirst = 16;
  static constexpr uint32_t kMost = 1024;

  std::atomic<uint32_t> waits_without_{0};
  // The next dear yield is followed by twice as many waits without one.
  std::atomic<uint32_t> next_{0};
};

}  // namespace horon::core
