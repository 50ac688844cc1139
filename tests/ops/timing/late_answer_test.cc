// The measurement of a host ends between two instructions of a peer. Not under a sanitizer, which
// makes many instructions of each.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include "horon/ops/timing/host_timing.h"
#include "horon/tests/support/shared_with_children.h"
#include "horon/tests/support/stepped_process.h"

namespace horon::ops {
namespace {

// The leader gives up before each step of a peer that answers its first turn: the peer must see it.
TEST(HostTiming, WhoAnswersLateIsNotHeldUp) {
  using Area = std::array<std::atomic<uint64_t>, (1 << 20) / sizeof(uint64_t)>;
  ASSERT_LE(HostTiming::area_bytes(), sizeof(Area));
  if (!can_be_stepped()) GTEST_SKIP() << "processes can't be stepped through here";
  bool answered = false;
  for (int steps = 0; !answered; ++steps) {
    const SharedWithChildren<Area> area;
    std::atomic<uint64_t>& turn = area->front();
    std::atomic<uint64_t>& begun = area->back();
    turn = 1;
    SteppedProcess peer([&] {
      begun = 1;
      auto* const memory = reinterpret_cast<std::byte*>(area->data());
      return HostTiming::measure(memory, false, 0, std::chrono::hours(1)) ? 1 : 0;
    });
    while (begun == 0) peer.step();
    for (int i = 0; i < steps && turn == 1; ++i) peer.step();
    answered = turn != 1;
    turn = ~uint64_t{0};
    ASSERT_EQ(peer.finish(), 0) << "after " << steps << " instructions";
  }
}

}  // namespace
}  // namespace horon::ops
