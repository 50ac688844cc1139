// Measures what it costs the rest of a process that one of its threads naps and polls in turn.
//
// On a core that nobody else wants it costs nothing, and the shorter the naps are, the sooner that
// thread finds what it polls for. Where the program computes on all cores, each poll interrupts one
// of its threads: two context switches and colder caches. The numbers of cores and threads do not
// tell which case it is, since a program may use one core or all of them, and other processes run
// beside it. So two things are measured: how often other threads of the process lose their core,
// and whether the program computes at all. Where the other threads only wait too, naps should be
// short.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

namespace horon::core {

// Belongs to the thread that naps.
class NapCost {
 public:
  // In a series of naps the kernel is asked once per so many of them: it then looks at all threads
  // of the process.
  static constexpr int kNaps = 16;
  // The same for dear naps, which are made longer: fewer of them span the same time.
  static constexpr int kNapsIfDear = 4;
  // How long a verdict holds without a new measurement. A training step naps for a few
  // milliseconds, in its backward pass alone, and the next step is like it.
  static constexpr int64_t kHoldsNs = 250'000'000;

  // Totals over all other threads of the process; only differences matter.
  struct Usage {
    int64_t cpu_ns = 0;
    // Times that one of them had to give its core up, or did so by a yield.
    int64_t lost_cores = 0;
  };
  static Usage usage_of_others() noexcept;

  // `usage`: called when a series of naps begins, and then after every kNaps (or kNapsIfDear) naps.
  explicit NapCost(std::function<Usage()> usage = usage_of_others) : usage_(std::move(usage)) {}

  // Call it when a nap begins. `now_ns`: of a steady clock.
  void note_nap(int64_t now_ns) noexcept;
  // Ends the series: from now on the thread waits in another way, or the program drives in its
  // place.
  void interrupt() noexcept { naps_ = kNoneSeen; }
  // The program computed during the last naps, and most of them took a core from it.
  bool is_dear(int64_t now_ns) const noexcept {
    return dear_ && now_ns - dear_since_ns_ <= kHoldsNs;
  }

 private:
  // After so long without a nap a series is over: the program may do something else by now.
  static constexpr int64_t kLongAgoNs = 5'000'000;
  static constexpr int kNoneSeen = -2;  // one may stay alone, so nothing is asked before the second

  void judge(const Usage& usage, int64_t now_ns) noexcept;

  std::function<Usage()> usage_;
  Usage begin_;
  int64_t begin_ns_ = 0;
  int64_t last_nap_ns_ = 0;
  int64_t dear_since_ns_ = 0;  // since it was last seen to be so
  int naps_ = kNoneSeen;       // since begin_
  bool dear_ = false;
};

}  // namespace horon::core
