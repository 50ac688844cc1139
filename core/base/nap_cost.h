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

namespace horon::core {

// Of the thread that naps. One thread.
class NapCost {
 public:
  // Where naps follow each other, the kernel is asked once in so many of them: it looks at all
  // threads of the process.
  static constexpr int kNaps = 16;

  // When a nap begins. `now_ns`: of a steady clock.
  void note_nap(int64_t now_ns) noexcept;
  // The thread waits in another way from now on, or the program for it.
  void forget() noexcept {
    naps_ = kNoneSeen;
    dear_ = false;
  }
  // The program computed during the last naps, and most of them took a core from it.
  bool is_dear() const noexcept { return dear_; }

  // Of all other threads of the process; differences alone count.
  struct Usage {
    int64_t now_ns = 0;
    int64_t cpu_ns = 0;
    // Times that one of them had to give its core up, or did so by a yield.
    int64_t lost_cores = 0;
  };
  // For tests: what note_nap() does before the first of kNaps naps, and after the last one.
  void begin(const Usage& usage) noexcept { begin_ = usage; }
  void end(const Usage& usage) noexcept;

 private:
  // The last nap was in another time: the program may do anything by now.
  static constexpr int64_t kLongAgoNs = 5'000'000;
  static constexpr int kNoneSeen = -2;
  static constexpr int kOneSeen = -1;  // it may stay alone, so nothing is asked yet

  Usage begin_;
  int64_t last_nap_ns_ = 0;
  int naps_ = kNoneSeen;  // since begin_
  bool dear_ = false;
};

}  // namespace horon::core
