#include "horon/core/negotiation/ring_gate.h"

#include <algorithm>
#include <array>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::core {
namespace {

constexpr uint64_t kCells = 8192;
// Go and Filled that a member may have left unread, see Gate::room().
constexpr uint64_t kUnreadMax = 4 * uint64_t{Gate::kCounters};
constexpr uint64_t kLow32 = 0xffffffff;
// What a cell holds of an item's value.
constexpr uint64_t kValueMax = kLow32 >> kRingItemShift;
static_assert(Gate::kPlaceMax <= kValueMax, "a payload has 32 bits");

// A cell holds the number of its lap (from 1) in its high half and the payload in its low half. So
// one atomic step writes an item: no member can be stopped halfway, and no item is visible before
// the one in front of it.
uint64_t lap_of(uint64_t position) { return position / kCells + 1; }

// The position in the log nearest to `near` with these low bits, which are all that a cell holds.
// The marker before is no reference: while nothing is frozen the log has no markers, and may grow
// by any number of records.
uint64_t position_of(uint64_t low_bits, uint64_t near) {
  constexpr uint64_t reach = (kValueMax + 1) / 2;
  return near - reach + ((low_bits - near + reach) & kValueMax);
}

}  // namespace

struct RingGate::Shared {
  struct alignas(64) Counter {
    // High half: the place that counts here; low half: members that have filled it since its last
    // Go.
    std::atomic<uint64_t> word;
  };
  std::array<Counter, kCounters> counters;
  alignas(64) std::atomic<uint64_t> end;  // items in the ring; may lag behind by the newest one
  alignas(64) std::array<std::atomic<uint64_t>, kCells> cells;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share these words");

size_t RingGate::bytes(int size) {
  return sizeof(Shared) + static_cast<size_t>(size) * sizeof(Cursor);
}

RingGate::Cursor* RingGate::cursors_behind(Shared* shared) {
  return reinterpret_cast<Cursor*>(shared + 1);
}

RingGate::RingGate(std::byte* area, int me, int size, std::function<void()> wake_others,
                   std::function<void()> wake_first)
    : shared_(reinterpret_cast<Shared*>(area)),
      cursors_(cursors_behind(shared_)),
      me_(static_cast<size_t>(me)),
      size_(static_cast<uint32_t>(size)),
      wake_others_(std::move(wake_others)),
      wake_first_(std::move(wake_first)) {
  HORON_CHECK(me >= 0 && me < size, "a gate is made for one of its members");
}

bool RingGate::fill(Place place) {
  std::atomic<uint64_t>& word = shared_->counters.at(place % kCounters).word;
  uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    const auto counts_for = static_cast<Place>(seen >> 32);
    if (counts_for > place) return false;
    const uint64_t count = (counts_for == place ? seen & kLow32 : 0) + 1;
    const bool full = count == size_;
    const uint64_t filled = (uint64_t{place} << 32) | (full ? 0 : count);
    if (word.compare_exchange_weak(seen, filled, std::memory_order_acq_rel,
                                   std::memory_order_relaxed)) {
      return full;
    }
  }
}

void RingGate::append(const RingItem& item) {
  const uint64_t payload = pack(item) & kLow32;
  uint64_t end = shared_->end.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t lap = lap_of(end);
    std::atomic<uint64_t>& cell = shared_->cells.at(end % kCells);
    uint64_t seen = cell.load(std::memory_order_acquire);
    // If the cell no longer holds the lap before, another member has written it already.
    const bool written =
        seen >> 32 == lap - 1 &&
        cell.compare_exchange_strong(seen, (lap << 32) | payload, std::memory_order_acq_rel);
    // Whoever sees a written cell moves the end on, so nobody waits for its writer.
    uint64_t expected = end;
    const bool moved =
        shared_->end.compare_exchange_strong(expected, end + 1, std::memory_order_acq_rel);
    if (written) return;
    end = moved ? end + 1 : expected;
  }
}

void RingGate::append_go(Place place, bool more) {
  append({RingItem::Kind::Go, place, more});
  if (!more) wake_others_();
}

void RingGate::append_marker(uint64_t position) { append({RingItem::Kind::Marker, position}); }

void RingGate::append_filled(Place place) {
  append({RingItem::Kind::Filled, place});
  if (me_ != 0) wake_first_();
}

void RingGate::wake() { wake_others_(); }

bool RingGate::room() const {
  const uint64_t end = shared_->end.load(std::memory_order_acquire);
  const auto leaves_room = [end](uint64_t slowest) {
    return end + 1 - slowest + kUnreadMax < kCells;
  };
  // Cursors only grow, so the old minimum is still a safe bound. They are read again only if that
  // leaves no room: each read costs a cache miss.
  if (leaves_room(slowest_)) return true;
  slowest_ = read_;
  for (size_t member = 0; member < size_; ++member) {
    slowest_ = std::min(slowest_, cursors_[member].read.load(std::memory_order_acquire));
  }
  return leaves_room(slowest_);
}

std::optional<RingItem> RingGate::next(uint64_t applied) {
  const uint64_t cell = shared_->cells.at(read_ % kCells).load(std::memory_order_acquire);
  if (cell >> 32 != lap_of(read_)) return std::nullopt;
  cursors_[me_].read.store(++read_, std::memory_order_release);
  RingItem item = unpack(cell & kLow32);
  if (item.kind == RingItem::Kind::Marker) item.value = position_of(item.value, applied);
  return item;
}

}  // namespace horon::core
