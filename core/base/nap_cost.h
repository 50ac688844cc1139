// What it costs the rest of a process that one of its threads naps and looks, again and again.
//
// On a core that nobody else wants it costs nothing, and the shorter the naps are, the sooner that
// thread finds what it looks for. Where the program computes on all cores, each look takes one of
// them from it: two switches, and what the caches held. Neither the number of cores nor that of
// threads says which it is, since a program may use one core or all of them, and others run beside
// it. So it is measured: how often other threads of the process lose their core, and whether the
// program computes at all. Beside threads that only wait as well, naps are to be short.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

namespace horon::core {

// Of the thread that naps. One thread.
class NapCost {
 public:
  // Where naps follow each other, the kernel is asked once in so many of them: it looks at all
  // threads of the process.
  static constexpr int kNaps = 16;
  // Naps that are dear are made longer, so fewer of them take as long.
  static constexpr int kNapsIfDear = 4;
  // A training step naps in its backward pass alone, for a few milliseconds, and the next step is
  // like it. So what was seen holds on for a while, though nothing was seen since.
  static constexpr int64_t kHoldsNs = 250'000'000;

  // Of all other threads of the process; differences alone count.
  struct Usage {
    int64_t cpu_ns = 0;
    // Times that one of them had to give its core up, or did so by a yield.
    int64_t lost_cores = 0;
  };
  static Usage usage_of_others() noexcept;

  // `usage`: called where a series of naps begins and after every kNaps of it, or kNapsIfDear.
  explicit NapCost(std::function<Usage()> usage = usage_of_others) : usage_(std::move(usage)) {}

  // When a nap begins. `now_ns`: of a steady clock.
  void note_nap(int64_t now_ns) noexcept;
  // The thread waits in another way from now on, or the program for it: the naps before and after
  // are of two series.
  void interrupt() noexcept { naps_ = kNoneSeen; }
  // The program computed during the last naps, and most of them took a core from it.
  bool is_dear(int64_t now_ns) const noexcept {
    return dear_ && now_ns - dear_since_ns_ <= kHoldsNs;
  }

 private:
  // The last nap was in another time: the program may do anything by now.
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
