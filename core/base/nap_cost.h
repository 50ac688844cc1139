// What it costs the rest of a process that one of its threads naps and looks, again and again.
//
// On a core that nobody else wants it costs nothing, and the shorter the naps are, the sooner that
// thread finds what it looks for. Where the program computes on all cores, each look takes one of
// them from it: two switches, and what the caches held. Neither the number of cores nor that of
// threads says which it is, since a program may use one core or all of them, and others run beside
// it. So it is measured: how often threads of the process lose their core, and whether the program
// computes at all. Beside threads that only wait as well, naps are to be short.
#pragma once

#include <cstdint>

namespace horon::core {

// Of the thread that naps. One thread.
class NapCost {
 public:
  // Counted since any time before.
  struct Usage {
    int64_t now_ns = 0;
    int64_t program_ns = 0;  // CPU time of all other threads of the process
    int64_t lost_cores = 0;  // times that a thread of the process had to give its core up
  };
  static constexpr int kNaps = 32;

  // After each nap. `now_ns`: of a steady clock.
  void note_nap(int64_t now_ns) noexcept;
  // The program computes, and most naps take a core from it. Of the last naps.
  bool is_dear() const noexcept { return dear_; }

  // What note_nap() notes before the first of kNaps naps, and after the last one.
  void begin(const Usage& usage) noexcept { begin_ = usage; }
  void end(const Usage& usage) noexcept;

 private:
  // Longer ago is another time: the program may have done anything since.
  static constexpr int64_t kLongAgo = 5'000'000;

  Usage begin_;
  int64_t last_nap_ns_ = -kLongAgo;
  int naps_ = 0;  // since begin()
  bool dear_ = false;
};

}  // namespace horon::core
