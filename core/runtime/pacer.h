// How long whoever steps the loop may sleep (PROTOCOL.md, section 5).
//
// Where every awaited event rings the doorbell, sleeps are long. Where somebody must look (MPI),
// the pause is an eighth of the time waited so far: a wait lasts at most 12.5 % longer than needed,
// and a wait of 100 ms takes about 170 looks. What MPI moves only inside its calls gets shorter
// pauses: such a collective has several rounds, which to this rank look like one long wait. The
// background thread makes them longer where they cost the program too much (base/nap_cost.h).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace horon::core {

class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  // Something happened: waiting begins anew.
  void news() { waiting_since_ = Clock::time_point{}; }

  // How this rank notices that what it waits for has happened.
  enum class Need : uint8_t {
    Ring,   // it rings the doorbell
    Look,   // somebody must look
    Drive,  // it goes on only while somebody looks, on all ranks that take part
  };

  std::chrono::nanoseconds pause(Need need, bool at_rest, bool coordinator) {
    using namespace std::chrono_literals;
    const auto now = Clock::now();
    if (waiting_since_ == Clock::time_point{}) waiting_since_ = now;
    waited_ = now - waiting_since_;
    if (need == Need::Ring) return at_rest ? kRest : kWatch;
    if (need == Need::Drive) {
      return std::clamp<std::chrono::nanoseconds>(waited_ / 8, 1us, kLongestOfDriven);
    }
    // When idle, only coordinators must wake quickly: the first messages of others come over MPI,
    // which does not ring the doorbell.
    const std::chrono::nanoseconds longest = at_rest && !coordinator ? 10ms : 1ms;
    return std::clamp<std::chrono::nanoseconds>(waited_ / 8, 1us, longest);
  }

  // From the last news to the last pause().
  std::chrono::nanoseconds waited() const { return waited_; }
  // The current wait is long enough to ask whether everybody still lives.
  bool long_wait() const { return waited_ > kLong; }

 private:
  // A pause delays each round of such a collective, on each rank, by up to this time. A look takes
  // one or two microseconds.
  static constexpr std::chrono::microseconds kLongestOfDriven{50};
  static constexpr std::chrono::milliseconds kRest{250};
  static constexpr std::chrono::milliseconds kWatch{50};
  static constexpr std::chrono::milliseconds kLong{40};
  Clock::time_point waiting_since_{};
  Clock::duration waited_{};
};

}  // namespace horon::core
