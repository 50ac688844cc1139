#include "horon/ops/timing/host_timing.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "horon/core/base/cpu_relax.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/timing/copy_rounds.h"
#include "horon/ops/timing/median.h"

namespace horon::ops {
namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kBlockBytes = 16 << 10;
constexpr int kEmptyRounds = 65;
constexpr int kBlockRounds = 33;
constexpr int kCopyRounds = 17;
constexpr int kRoundsNeeded = 5;  // of each of the last two
constexpr uint64_t kFirstWithBlocks = kEmptyRounds;
constexpr uint64_t kFirstWithCopies = kFirstWithBlocks + kBlockRounds;
constexpr uint64_t kTurnsOver = ~uint64_t{0};

struct TimingArea {
  alignas(64) std::atomic<uint64_t> turn;  // odd: of the one that answers
  alignas(64) std::array<std::byte, kBlockBytes> of_leader;
  alignas(64) std::array<std::byte, kBlockBytes> of_peer;
  CopyRings rings;
};

// Waits as ranks do in a collective: a few looks, then it yields the core.
bool wait_for(const TimingArea& area, uint64_t turn, Clock::time_point limit) {
  constexpr int kLooksOfTurn = 16;
  for (;;) {
    for (int look = 0; look < kLooksOfTurn; ++look) {
      const uint64_t seen = area.turn.load(std::memory_order_acquire);
      if (seen == kTurnsOver) return false;
      if (seen >= turn) return true;
      core::cpu_relax();
    }
    if (Clock::now() > limit) return false;
    std::this_thread::yield();
  }
}

void add_block(std::array<std::byte, kBlockBytes>& mine,
               const std::array<std::byte, kBlockBytes>& other) {
  const std::array<const std::byte*, 2> inputs = {mine.data(), other.data()};
  std::byte* const output = mine.data();
  reduce_many({}, inputs, {&output, 1}, static_cast<int64_t>(kBlockBytes / sizeof(float)));
}

// Both ranks know which rounds have blocks.
bool has_block(uint64_t round) { return round >= kFirstWithBlocks && round < kFirstWithCopies; }

// The step of both ranks in a turn of the copies.
CopyRounds::Step copy_step_of(uint64_t turn) {
  return static_cast<CopyRounds::Step>((turn - kFirstWithCopies) % CopyRounds::kSteps);
}

void answer_turns(TimingArea& area, int leader, Clock::time_point limit) {
  std::optional<CopyRounds> copies;
  for (uint64_t round = 0; wait_for(area, 2 * round + 1, limit); ++round) {
    if (has_block(round)) add_block(area.of_peer, area.of_leader);
    if (round >= kFirstWithCopies) {
      if (!copies) copies.emplace(area.rings, false, leader);
      copies->run(copy_step_of(round));
    }
    uint64_t asked = 2 * round + 1;  // unless the leader has given up meanwhile
    area.turn.compare_exchange_strong(asked, 2 * round + 2, std::memory_order_acq_rel);
  }
}

// Microseconds of one way.
std::vector<double> pass_to_and_fro(TimingArea& area, uint64_t first, int rounds,
                                    Clock::time_point limit) {
  std::vector<double> ways;
  for (uint64_t round = first; round < first + static_cast<uint64_t>(rounds); ++round) {
    const auto begin = Clock::now();
    if (begin > limit) break;
    if (has_block(round)) add_block(area.of_leader, area.of_peer);
    area.turn.store(2 * round + 1, std::memory_order_release);
    if (!wait_for(area, 2 * round + 2, limit)) break;
    ways.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / 2);
  }
  return ways;
}

// Rates of both ranks at the same time, by each of the two ways.
class CopyTimes {
 public:
  CopyTimes(TimingArea& area, int peer) : area_(area), copies_(area.rings, true, peer) {}

  // False if the peer does not answer, or the kernel does not copy.
  bool time_round(Clock::time_point limit) {
    std::array<double, CopyRounds::kSteps> us{};
    for (double& time : us) {
      const auto begin = Clock::now();
      if (begin > limit) return false;
      area_.turn.store(2 * turn_ + 1, std::memory_order_release);
      copies_.run(copy_step_of(turn_));
      if (!wait_for(area_, 2 * turn_ + 2, limit)) return false;
      time = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
      ++turn_;
    }
    ring_us_.push_back(us[CopyRounds::Fill] + us[CopyRounds::Drain]);
    kernel_us_.push_back(us[CopyRounds::CopyByKernel]);
    return !refused();
  }
  bool refused() const { return copies_.refused(); }
  double by_kernel() const { return static_cast<double>(CopyRings::kBytes) / median(kernel_us_); }
  double by_ring() const { return static_cast<double>(CopyRings::kBytes) / median(ring_us_); }

 private:
  TimingArea& area_;
  CopyRounds copies_;
  uint64_t turn_ = kFirstWithCopies;
  std::vector<double> ring_us_;
  std::vector<double> kernel_us_;
};

// False if there are too few rounds to tell.
bool time_copies(TimingArea& area, int peer, Clock::time_point limit, HostTiming::Times& times) {
  CopyTimes copies(area, peer);
  int rounds = 0;
  while (rounds < kCopyRounds && copies.time_round(limit)) ++rounds;
  if (rounds < kRoundsNeeded || copies.refused()) return false;
  times.process_copy_bytes_per_us = copies.by_kernel();
  times.ring_copy_bytes_per_us = copies.by_ring();
  return true;
}

std::optional<HostTiming::Times> lead_turns(TimingArea& area, int peer, microseconds most) {
  const Clock::time_point limit = Clock::now() + most;
  const std::vector<double> empty = pass_to_and_fro(area, 0, kEmptyRounds, limit);
  if (empty.size() < kEmptyRounds) return std::nullopt;
  const std::vector<double> full = pass_to_and_fro(area, kFirstWithBlocks, kBlockRounds, limit);
  if (full.size() < kRoundsNeeded) return std::nullopt;
  // Other programs make a hand-off longer, and that counts. For the arithmetic the undisturbed time
  // counts, so the quickest rounds of both kinds are compared.
  const double least_us =
      *std::min_element(full.begin(), full.end()) - *std::min_element(empty.begin(), empty.end());
  constexpr double kClock_us = 0.1;
  HostTiming::Times times;
  times.handoff_us = median(empty);
  times.sum_bytes_per_us = static_cast<double>(kBlockBytes) / std::max(least_us, kClock_us);
  if (peer != 0 && !time_copies(area, peer, Clock::now() + most, times)) return std::nullopt;
  return times;
}

}  // namespace

size_t HostTiming::area_bytes() { return sizeof(TimingArea); }

std::optional<HostTiming::Times> HostTiming::measure(std::byte* memory, bool leads, int peer,
                                                     std::chrono::microseconds limit) {
  auto& area = *reinterpret_cast<TimingArea*>(memory);
  if (!leads) {
    answer_turns(area, peer, Clock::now() + 4 * limit);
    return std::nullopt;
  }
  const std::optional<Times> times = lead_turns(area, peer, limit);
  area.turn.store(kTurnsOver, std::memory_order_release);
  return times;
}

}  // namespace horon::ops
