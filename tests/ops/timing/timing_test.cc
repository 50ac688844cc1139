// The measurements themselves. What they find depends on the machine; that they end does not.
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "horon/ops/timing/host_timing.h"
#include "horon/ops/timing/wire_timing.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/thread_messages.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using test::error_of;

struct AlignedMemory {
  AlignedMemory()
      : data(static_cast<std::byte*>(::operator new(HostTiming::area_bytes(), kAlignment))) {
    std::memset(data, 0, HostTiming::area_bytes());
  }
  ~AlignedMemory() { ::operator delete(data, kAlignment); }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;
  static constexpr std::align_val_t kAlignment{64};
  std::byte* const data;
};

TEST(HostTiming, TheOneThatLeadsGetsTimes) {
  const AlignedMemory area;
  core::run_ranks(2, [&](int rank) {
    const auto times = HostTiming::measure(area.data, rank == 0, milliseconds(5000));
    ASSERT_EQ(times.has_value(), rank == 0);
    if (!times) return;
    EXPECT_GT(times->handoff_us, 0);
    EXPECT_GT(times->sum_bytes_per_us, 0);
  });
}

TEST(HostTiming, EndsWithoutAPeer) {
  for (const bool leads : {true, false}) {
    const AlignedMemory area;
    EXPECT_EQ(HostTiming::measure(area.data, leads, microseconds(500)), std::nullopt);
  }
}

// A peer that comes late finds the measurement over.
TEST(HostTiming, WhoComesLateIsNotHeldUp) {
  const AlignedMemory area;
  EXPECT_EQ(HostTiming::measure(area.data, true, microseconds(500)), std::nullopt);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(HostTiming::measure(area.data, false, std::chrono::hours(1)), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

TEST(WireTiming, TheOneThatLeadsGetsTimesAndNothingStaysUnderWay) {
  MessageHub hub;
  core::run_ranks(2, [&](int rank) {
    ThreadMessages messages(hub, rank);
    const auto times = WireTiming::measure(messages, 1 - rank, rank == 0, {});
    ASSERT_EQ(times.has_value(), rank == 0);
    if (!times) return;
    EXPECT_GT(times->message_us, 0);
    EXPECT_GT(times->wire_bytes_per_us, 0);
  });
  EXPECT_TRUE(hub.empty());
}

TEST(WireTiming, WithoutTimeBothEndAfterTheLeast) {
  MessageHub hub;
  core::run_ranks(2, [&](int rank) {
    ThreadMessages messages(hub, rank);
    const WireTiming::Limits limits{.begins = microseconds(0)};
    const auto times = WireTiming::measure(messages, 1 - rank, rank == 0, limits);
    EXPECT_EQ(times.has_value(), rank == 0);
  });
  EXPECT_TRUE(hub.empty());
}

TEST(WireTiming, APeerThatDoesNotAnswerIsNamed) {
  for (const bool leads : {true, false}) {
    MessageHub hub;
    ThreadMessages messages(hub, 0);
    const WireTiming::Limits limits{.answer = milliseconds(2)};
    const std::string error =
        error_of([&] { (void)WireTiming::measure(messages, 7, leads, limits); });
    EXPECT_NE(error.find("rank 7"), std::string::npos) << error;
    EXPECT_NE(error.find("HORON_MEASURE=off"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace horon::ops
