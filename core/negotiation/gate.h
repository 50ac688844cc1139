// What the members of a process set on one host share to start frozen entries without a message
// (PROTOCOL.md, section 12): counters, and a ring of entries that all of them read in one order.
#pragma once

#include <cstdint>
#include <optional>

#include "horon/core/negotiation/protocol.h"

namespace horon::core {

struct GateEntry {
  // Go: all members have filled the place. Marker: the log up to `value` records stands here.
  enum class Kind : uint8_t { Go, Marker };
  Kind kind = Kind::Go;
  uint64_t value = 0;  // Go: the place
  bool more = false;   // Go: runs together with the next entry, if that is a Go and they can fuse
};

// One member's access to it. Belongs to the thread that holds the controller. Nothing blocks.
class Gate {
 public:
  // Counters: so many places can be frozen at a time. Place p counts in counter p % kCounters.
  static constexpr uint32_t kCounters = 1024;
  static constexpr Place kPlaceMax = (Place{1} << 30) - 1;

  virtual ~Gate() = default;

  // Counts this member in. True if all members are in now: append its Go. False forever once a
  // later place has used the counter.
  virtual bool fill(Place place) = 0;
  // Visible to all members, as is everything appended before it, when this returns. `more`: this
  // member appends another Go at once (see GateEntry). The last one wakes the members.
  virtual void append_go(Place place, bool more) = 0;
  // By the coordinator alone, after room(); `position` only grows. Wakes nobody: the records that
  // are sent next do.
  virtual void append_marker(uint64_t position) = 0;
  // No member is so far behind that a marker could overwrite what it has not read. Go need not
  // ask: at most two of each counter are unread.
  virtual bool room() const = 0;
  // The next entry that this member has not read.
  virtual std::optional<GateEntry> next() = 0;
};

}  // namespace horon::core
