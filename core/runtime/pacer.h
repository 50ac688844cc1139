// How long whoever steps the loop may sleep (PROTOCOL.md, section 5).
//
// Where every awaited event rings the doorbell, sleeps are long. Where somebody must look (MPI),
// the pause is an eighth of the time waited so far: a wait costs at most 12.5 % more than the
// network, and a wait of 100 ms takes about 170 looks.
#pragma once

#include <algorithm>
#include <chrono>

namespace horon::core {

class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  // Something happened: waiting begins anew.
  void news() { waiting_since_ = Clock::time_point{}; }

  std::chrono::nanoseconds pause(bool poll, bool at_rest, bool coordinator) {
    using namespace std::chrono_literals;
    const auto now = Clock::now();
    if (waiting_since_ == Clock::time_point{}) waiting_since_ = now;
    waited_ = now - waiting_since_;
    if (!poll) return at_rest ? kRest : kWatch;
    // When idle, only coordinators must wake quickly: the first messages of others come over MPI,
    // which does not ring the doorbell.
    const std::chrono::nanoseconds longest = at_rest && !coordinator ? 10ms : 1ms;
    return std::clamp<std::chrono::nanoseconds>(waited_ / 8, 1us, longest);
  }

  // The current wait is long enough to ask whether everybody still lives.
  bool long_wait() const { return waited_ > kLong; }

 private:
  static constexpr std::chrono::milliseconds kRest{250};
  static constexpr std::chrono::milliseconds kWatch{50};
  static constexpr std::chrono::milliseconds kLong{40};
  Clock::time_point waiting_since_{};
  Clock::duration waited_{};
};

}  // namespace horon::core
