// What the members of a process set on one host share to start frozen entries (PROTOCOL.md, section
// 12): counters, and a ring of items that all of them read in the same order. A set that spans
// several hosts has one gate on each host.
#pragma once

#include <cstdint>
#include <optional>

#include "horon/core/negotiation/protocol.h"
#include "horon/core/negotiation/ring_item.h"

namespace horon::core {

// One member's access to the gate of its host. Belongs to the thread that holds the controller.
// Nothing blocks.
class Gate {
 public:
  // Counters: so many places can be frozen at a time. Place p counts in counter p % kCounters.
  static constexpr uint32_t kCounters = 1024;
  static constexpr Place kPlaceMax = (Place{1} << 30) - 1;

  virtual ~Gate() = default;

  // Counts this member in. True for the member that completes the count on this host: it must
  // append the Go, or the Filled if there are other hosts. False for a place whose counter a later
  // place has taken over.
  virtual bool fill(Place place) = 0;
  // When this returns, the Go and everything appended before it are visible to all members. `more`:
  // this member appends another Go at once (see RingItem). The last one wakes the members.
  virtual void append_go(Place place, bool more) = 0;
  // Only the host's first member appends markers, and only after room() was true; `position` only
  // grows. Wakes nobody: on the coordinator's host the members are woken by the records that are
  // sent next, on others by the first member's wake().
  virtual void append_marker(uint64_t position) = 0;
  // "All members of this host are in." Wakes the host's first member, which tells the coordinator.
  virtual void append_filled(Place place) = 0;
  // Makes all other members of this host call next().
  virtual void wake() = 0;
  // No member is so far behind that a marker could overwrite what it has not read. Go and Filled
  // need not ask: per counter at most two of each are unread.
  virtual bool room() const = 0;
  // The next item that this member has not read. `applied`: the records that it has applied; the
  // position of a marker is less than 2^29 away from that.
  virtual std::optional<RingItem> next(uint64_t applied) = 0;
};

}  // namespace horon::core
