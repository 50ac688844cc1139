// The measurements themselves. What they find depends on the machine; that they end does not.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/timing/host_timing.h"
#include "horon/ops/timing/wire_timing.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/long_enough.h"
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
    const auto times = HostTiming::measure(area.data, rank == 0, getpid(), kLongEnough);
    ASSERT_EQ(times.has_value(), rank == 0);
    if (!times) return;
    EXPECT_GT(times->handoff_us, 0);
    EXPECT_GT(times->sum_bytes_per_us, 0);
    EXPECT_GT(times->process_copy_bytes_per_us, 0);
    EXPECT_GT(times->ring_copy_bytes_per_us, 0);
  });
}

// As for a peer whose memory the kernel may not read.
TEST(HostTiming, WithoutAProcessToCopyFromNoCopiesAreTimed) {
  const AlignedMemory area;
  core::run_ranks(2, [&](int rank) {
    const auto times = HostTiming::measure(area.data, rank == 0, 0, kLongEnough);
    if (!times) return;
    EXPECT_GT(times->handoff_us, 0);
    EXPECT_EQ(times->process_copy_bytes_per_us, 0);
    EXPECT_EQ(times->ring_copy_bytes_per_us, 0);
  });
}

TEST(HostTiming, ThereAreNoTimesIfTheKernelDoesNotCopy) {
  const AlignedMemory area;
  core::run_ranks(2, [&](int rank) {
    constexpr int kNoProcess = std::numeric_limits<int>::max();
    EXPECT_EQ(HostTiming::measure(area.data, rank == 0, kNoProcess, kLongEnough), std::nullopt);
  });
}

TEST(HostTiming, EndsWithoutAPeer) {
  for (const bool leads : {true, false}) {
    const AlignedMemory area;
    EXPECT_EQ(HostTiming::measure(area.data, leads, 0, microseconds(500)), std::nullopt);
  }
}

// A peer that comes late finds the measurement over.
TEST(HostTiming, WhoComesLateIsNotHeldUp) {
  const AlignedMemory area;
  EXPECT_EQ(HostTiming::measure(area.data, true, 0, microseconds(500)), std::nullopt);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(HostTiming::measure(area.data, false, 0, std::chrono::hours(1)), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

// What a rank sends leaves it through a token bucket: so many bytes at once, the rest at a rate.
class BucketMessages final : public Messages {
 public:
  BucketMessages(MessageHub& hub, int rank, double burst_bytes, double bytes_per_us)
      : messages_(hub, rank), burst_us_(burst_bytes / bytes_per_us), bytes_per_us_(bytes_per_us) {}

  Id send(int to, int tag, const std::byte* data, int64_t bytes) override {
    full_at_ =
        std::max(full_at_, Clock::now()) + to_ticks(static_cast<double>(bytes) / bytes_per_us_);
    posted_.push_back({[=, this] { return messages_.send(to, tag, data, bytes); },
                       full_at_ - to_ticks(burst_us_), std::nullopt});
    return static_cast<Id>(posted_.size() - 1);
  }
  Id receive(int from, int tag, std::byte* data, int64_t bytes) override {
    posted_.push_back({nullptr, {}, messages_.receive(from, tag, data, bytes)});
    return static_cast<Id>(posted_.size() - 1);
  }
  void progress() override {
    for (; left_ < posted_.size() && Clock::now() >= posted_[left_].leaves_at; ++left_) {
      Posted& next = posted_[left_];
      if (!next.id) next.id = next.post();
    }
    messages_.progress();
  }
  bool take_if_over(Id id) override {
    const std::optional<Id> inner = posted_.at(id).id;
    return inner && messages_.take_if_over(*inner);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Posted {
    std::function<Id()> post;
    Clock::time_point leaves_at;
    std::optional<Id> id;  // once it has left
  };
  static Clock::duration to_ticks(double us) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double, std::micro>(us));
  }

  ThreadMessages messages_;
  const double burst_us_;
  const double bytes_per_us_;
  Clock::time_point full_at_;  // the bucket, if nothing more is sent
  std::vector<Posted> posted_;
  size_t left_ = 0;  // of those that were posted
};

// The rate that two ranks measure when they send through such buckets.
double measured_bytes_per_us(double burst_bytes, double bytes_per_us) {
  MessageHub hub;
  double found = 0;
  core::run_ranks(2, [&](int rank) {
    const auto messages = std::make_shared<BucketMessages>(hub, rank, burst_bytes, bytes_per_us);
    const WireTiming::Limits limits{.begins = kLongEnough, .answer = kLongEnough};
    const auto times = WireTiming::measure(messages, 1 - rank, rank == 0, limits);
    if (times) found = times->wire_bytes_per_us;
  });
  EXPECT_TRUE(hub.empty());
  return found;
}

// A burst passes at once, but it is the rate after it for which a long collective waits. On a busy
// machine one measurement may find less; one that takes the burst for the rate never finds that.
TEST(WireTiming, ABurstIsNotTheRateOfTheLink) {
  constexpr double kBytesPerUs = 4;  // so slow that a busy machine changes little
  const auto is_rate = [](double found) {
    return found > kBytesPerUs / 2 && found < kBytesPerUs * 2;
  };
  double found = 0;
  for (int times = 0; times < 50 && !is_rate(found); ++times) {
    found = measured_bytes_per_us(128 << 10, kBytesPerUs);
  }
  EXPECT_PRED1(is_rate, found);
}

TEST(WireTiming, TheOneThatLeadsGetsTimesAndNothingStaysUnderWay) {
  MessageHub hub;
  core::run_ranks(2, [&](int rank) {
    const auto messages = std::make_shared<ThreadMessages>(hub, rank);
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
    const auto messages = std::make_shared<ThreadMessages>(hub, rank);
    const WireTiming::Limits limits{.begins = microseconds(0)};
    const auto times = WireTiming::measure(messages, 1 - rank, rank == 0, limits);
    EXPECT_EQ(times.has_value(), rank == 0);
  });
  EXPECT_TRUE(hub.empty());
}

TEST(WireTiming, APeerThatDoesNotAnswerIsNamed) {
  for (const bool leads : {true, false}) {
    MessageHub hub;
    const auto messages = std::make_shared<ThreadMessages>(hub, 0);
    const WireTiming::Limits limits{.answer = milliseconds(2)};
    const std::string error =
        error_of([&] { (void)WireTiming::measure(messages, 7, leads, limits); });
    EXPECT_NE(error.find("rank 7"), std::string::npos) << error;
    EXPECT_NE(error.find("HORON_MEASURE=off"), std::string::npos) << error;
  }
}

// Fills its stack frame, where that of measure() was before, and lets messages arrive from a peer
// that goes on.
template <class Arrive>
[[gnu::noinline]] bool stays_as_it_is(const Arrive& arrive) {
  constexpr unsigned char kMark = 0xAA;
  volatile unsigned char frame[8192];
  for (volatile unsigned char& one : frame) one = kMark;
  arrive();
  return std::all_of(std::begin(frame), std::end(frame),
                     [](unsigned char one) { return one == kMark; });
}

// MPI writes to a posted buffer whenever the peer sends, however long ago the receive was given up.
TEST(WireTiming, WhatAPeerSendsTooLateFindsItsPlace) {
  MessageHub hub;
  auto messages = std::make_shared<ThreadMessages>(hub, 0);
  const std::weak_ptr<Messages> kept = messages;
  const auto give_up = [&] {
    (void)WireTiming::measure(std::move(messages), 1, false, {.answer = milliseconds(2)});
  };
  EXPECT_NE(error_of(give_up).find("has not answered"), std::string::npos);
  EXPECT_FALSE(kept.expired());
  ThreadMessages peer(hub, 1);
  const int64_t number = 0x0123456789ABCDEF;
  EXPECT_TRUE(stays_as_it_is([&] {
    (void)peer.send(0, Messages::kFirstBlockTag, reinterpret_cast<const std::byte*>(&number),
                    sizeof number);
  }));
  EXPECT_TRUE(hub.empty());
}

// The same for long messages. The peer has answered more short ones than are asked for.
TEST(WireTiming, LongMessagesThatComeTooLateFindTheirPlace) {
  constexpr int kAnswers = 100;
  MessageHub hub;
  ThreadMessages peer(hub, 1);
  int64_t answer = 0;
  auto* const bytes = reinterpret_cast<std::byte*>(&answer);
  for (int i = 0; i < kAnswers; ++i) {
    (void)peer.receive(0, Messages::kFirstBlockTag, bytes, sizeof answer);
    (void)peer.send(0, Messages::kFirstBlockTag, bytes, sizeof answer);
  }
  auto messages = std::make_shared<ThreadMessages>(hub, 0);
  const std::weak_ptr<Messages> kept = messages;
  const auto give_up = [&] {
    (void)WireTiming::measure(std::move(messages), 1, true, {.answer = std::chrono::seconds(2)});
  };
  EXPECT_NE(error_of(give_up).find("has not answered"), std::string::npos);
  EXPECT_EQ(answer, 1) << "so many long messages are asked for";
  EXPECT_FALSE(kept.expired());
  const std::vector<std::byte> late(kMessageBytes);
  (void)peer.send(0, Messages::kFirstBlockTag + 1, late.data(), kMessageBytes);
}

TEST(WireTiming, NothingIsKeptOfAMeasurementThatEnds) {
  MessageHub hub;
  core::run_ranks(2, [&](int rank) {
    auto messages = std::make_shared<ThreadMessages>(hub, rank);
    const std::weak_ptr<Messages> gone = messages;
    (void)WireTiming::measure(std::move(messages), 1 - rank, rank == 0, {});
    EXPECT_TRUE(gone.expired());
  });
}

}  // namespace
}  // namespace horon::ops
