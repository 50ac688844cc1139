#include "horon/core/negotiation/ring_gate.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

// The gates of some members in one process.
class Members {
 public:
  explicit Members(int size) : memory_(RingGate::bytes(size) / sizeof(Line)) {
    for (int me = 0; me < size; ++me) {
      gates_.push_back(std::make_unique<RingGate>(
          reinterpret_cast<std::byte*>(memory_.data()), me, size, [this] { ++wakes_; },
          [this] { ++wakes_of_first_; }));
    }
  }
  RingGate& operator[](size_t member) { return *gates_[member]; }
  int wakes() const { return wakes_; }
  int wakes_of_first() const { return wakes_of_first_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory_;
  std::vector<std::unique_ptr<RingGate>> gates_;
  std::atomic<int> wakes_{0};
  std::atomic<int> wakes_of_first_{0};
};

// `applied`: as in Gate::next().
void expect_next(RingGate& gate, RingItem::Kind kind, uint64_t value, uint64_t applied = 0) {
  const std::optional<RingItem> entry = gate.next(applied);
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->kind, kind);
  EXPECT_EQ(entry->value, value);
}

TEST(RingGate, TheLastOneOfEachRoundIsTold) {
  Members members(3);
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(members[2].fill(7));
    EXPECT_FALSE(members[0].fill(7));
    EXPECT_FALSE(members[0].fill(8));  // counts apart
    EXPECT_TRUE(members[1].fill(7));
    EXPECT_FALSE(members[1].fill(8));
    EXPECT_TRUE(members[2].fill(8));
  }
}

// The count of a thawed place is not added to that of the next one, and can't grow any more.
TEST(RingGate, ALaterPlaceBeginsAnew) {
  Members members(2);
  constexpr Place earlier = 5;
  constexpr Place later = 5 + Gate::kCounters;
  EXPECT_FALSE(members[0].fill(earlier));
  EXPECT_FALSE(members[0].fill(later));
  EXPECT_FALSE(members[1].fill(earlier));
  EXPECT_TRUE(members[1].fill(later));
}

TEST(RingGate, AllReadTheSame) {
  Members members(2);
  members[0].append_marker(3);
  members[1].append_go(9, false);
  members[0].append_marker(4);
  EXPECT_EQ(members.wakes(), 1);  // by the Go; markers wake no member
  for (const size_t member : {0, 1}) {
    expect_next(members[member], RingItem::Kind::Marker, 3);
    expect_next(members[member], RingItem::Kind::Go, 9);
    expect_next(members[member], RingItem::Kind::Marker, 4);
    EXPECT_FALSE(members[member].next(4).has_value());
  }
}

// A cell holds the low bits of a position. Between two markers, while nothing is frozen, the log
// may have grown by more than these count.
TEST(RingGate, PositionsAreThoseNextToWhatHasBeenApplied) {
  constexpr uint64_t lap = uint64_t{1} << 30;
  constexpr uint64_t lag = 5000;
  Members members(1);
  for (const uint64_t position : {uint64_t{3}, lap - 1, lap, lap + 2, 2 * lap + 3, 7 * lap + 2}) {
    for (const uint64_t applied :
         {position - 1, position + lag, position - std::min(position, lag)}) {
      members[0].append_marker(position);
      expect_next(members[0], RingItem::Kind::Marker, position, applied);
    }
  }
}

// A member that takes several steps to start entries that belong together wakes the others once.
TEST(RingGate, AGoSaysWhetherMoreBelongsToIt) {
  Members members(2);
  members[0].append_go(Gate::kPlaceMax, true);
  members[0].append_go(2, true);
  EXPECT_EQ(members.wakes(), 0);
  members[0].append_go(3, false);
  EXPECT_EQ(members.wakes(), 1);
  for (const Place place : {Gate::kPlaceMax, Place{2}, Place{3}}) {
    const std::optional<RingItem> entry = members[1].next(0);
    ASSERT_TRUE(entry.has_value());
    EXPECT_EQ(entry->value, place);
    EXPECT_EQ(entry->more, place != 3);
  }
}

// The first member informs the coordinator, so the others need not read.
TEST(RingGate, FilledWakesTheFirstMember) {
  Members members(3);
  members[2].append_filled(4);
  members[0].append_filled(5);  // it reads on by itself
  EXPECT_EQ(members.wakes(), 0);
  EXPECT_EQ(members.wakes_of_first(), 1);
  expect_next(members[0], RingItem::Kind::Filled, 4);
  expect_next(members[0], RingItem::Kind::Filled, 5);
  members[0].append_marker(1);
  members[0].wake();
  EXPECT_EQ(members.wakes(), 1);
}

TEST(RingGate, MarkersLeaveRoomForEveryGoAndFilled) {
  Members members(2);
  uint64_t markers = 0;
  for (int lap = 0; lap < 5; ++lap) {
    const uint64_t first = markers;
    while (members[0].room()) members[0].append_marker(++markers);
    EXPECT_GT(markers, first + 1000);
    for (Place place = 1; place <= 2 * Gate::kCounters; ++place) {
      members[1].append_filled(place);
      members[1].append_go(place, false);
    }
    while (members[0].next(0)) {
    }
    EXPECT_FALSE(members[0].room()) << "the other member has read nothing";
    for (uint64_t position = first; position < markers;) {
      expect_next(members[1], RingItem::Kind::Marker, ++position);
    }
    for (Place place = 1; place <= 2 * Gate::kCounters; ++place) {
      expect_next(members[1], RingItem::Kind::Filled, place);
      expect_next(members[1], RingItem::Kind::Go, place);
    }
    EXPECT_TRUE(members[0].room());
  }
}

TEST(RingGate, ThreadsThatFillAndAppendAtOnceReadOneOrder) {
  constexpr int size = 4;
  constexpr int places = 3;
  constexpr uint64_t rounds = 5000;
  Members members(size);
  std::vector<std::vector<uint64_t>> read(size);
  std::vector<std::thread> threads;
  for (int me = 0; me < size; ++me) {
    threads.emplace_back([&, me] {
      RingGate& gate = members[static_cast<size_t>(me)];
      std::vector<uint64_t>& seen = read[static_cast<size_t>(me)];
      std::vector<uint64_t> filled(places + 1);
      const auto fill = [&](Place place) {
        if (++filled[place] <= rounds && gate.fill(place)) gate.append_go(place, false);
      };
      uint64_t markers = 0;
      for (Place place = 1; place <= places; ++place) fill(place);
      for (uint64_t goes = 0; goes < places * rounds;) {
        if (me == 0 && markers < rounds && gate.room()) gate.append_marker(++markers);
        const std::optional<RingItem> entry = gate.next(markers);
        if (!entry) {
          std::this_thread::yield();
          continue;
        }
        const bool go = entry->kind == RingItem::Kind::Go;
        seen.push_back(entry->value * 2 + (go ? 1 : 0));
        if (!go) continue;
        ++goes;
        fill(static_cast<Place>(entry->value));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<uint64_t>& seen : read) {
    // Markers after the last Go may not have been read.
    const size_t common = std::min(seen.size(), read[0].size());
    EXPECT_GE(common, places * rounds);
    EXPECT_TRUE(
        std::equal(seen.begin(), seen.begin() + static_cast<int64_t>(common), read[0].begin()));
  }
}

}  // namespace
}  // namespace horon::core
