// The items of the control protocol as plain values (core/negotiation/PROTOCOL.md describes it).
//
// Members send Ready, Refused, Join, Shutdown, Drained and Deviate up to the coordinator of their
// set, and Eager to all members. The coordinator appends records (Plan, Fail, Unused, Joined, Bye,
// Freeze, Thaw) to the set's log, which every member applies in order. Ping, Pong, Stall, Abort,
// Seek and Found stand outside the log, and so does RingItem: where a set spans several hosts, the
// first member of each says Filled, and the coordinator answers with the Go and markers for that
// host's ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "horon/core/base/entry_spec.h"
#include "horon/core/base/error.h"
#include "horon/core/base/overloaded.h"
#include "horon/core/negotiation/ring_item.h"

namespace horon::core {

// A (name, spec) that has been agreed before: saves sending both again. 0 is "not cached".
using EntryId = uint32_t;
inline constexpr EntryId kNoId = 0;
inline constexpr EntryId kIdsMax = 65536;

// Identifies a frozen entry, and thereby its counter in the gate. Grows from 1 with each freeze;
// never given twice within a set.
using Place = uint32_t;
inline constexpr Place kNoPlace = 0;

using SpecPtr = std::shared_ptr<const EntrySpec>;

class SaidByAll;  // told_extents.h

// "My entry is here." By id if it was agreed before, else by name and spec.
struct Ready {
  EntryId id = kNoId;
  std::string name;          // empty if id is given
  SpecPtr spec;              // null if id is given
  bool eager = false;        // with spec: this member means to send Eager when it has an id
  std::vector<bool> absent;  // per part: this rank has nothing for it; empty: all parts are here
  std::vector<int64_t> extents;  // has_own_rows(): see extents_of_part(), part by part
};

// "My entry is here, and these are its elements." To all members, the coordinator among them, for
// whom it is a vote as Ready is. A member that has it from all members needs no record.
struct Eager {
  EntryId id = kNoId;
  uint64_t round = 0;  // how often the entry has been served while this was its latest id
  std::vector<std::byte> elements;
};

// "My program's call was wrong": the entry must fail in the same way everywhere.
struct Refused {
  std::string name;
  std::string text;
};

struct Join {};
struct Shutdown {};

// After Shutdown: "all batches that the log has started have ended here, and there were so many,
// with the entries that all members have sent Eager for."
struct Drained {
  uint64_t batches = 0;
};

struct Ping {
  uint64_t number = 0;
};
struct Pong {
  uint64_t number = 0;
};

struct PlannedEntry {
  EntryId id = kNoId;
  // With `spec` in the first plan of an id, and always where there is no id; else empty.
  std::string name;
  SpecPtr spec;
  bool eager = false;            // with spec: members may send Eager for this id
  uint64_t round = 0;            // which the Plan ends; see Eager
  std::vector<bool> produced;    // per part: somebody has it; empty: all parts
  std::vector<int64_t> extents;  // has_own_rows(): see told_extents.h
  // Alltoall, in the coordinator's own log: the whole of which each member is told its part, as
  // `extents`. Never sent.
  std::shared_ptr<const SaidByAll> said_by_all;
};

// Entries that run as one collective, packed one behind the other.
struct PlannedBatch {
  std::vector<PlannedEntry> entries;
  std::vector<int> joined;  // members that take part with the neutral element
};

struct Plan {
  std::vector<PlannedBatch> batches;
};

struct Fail {
  std::string name;
  ErrorCode code = ErrorCode::Mismatch;
  std::string text;
  uint64_t round = 0;  // which it ends; see Eager
};

// Nobody produced anything for this entry.
struct Unused {
  std::string name;
  uint64_t round = 0;  // which it ends; see Eager
};

struct Joined {
  int32_t last = 0;
};
// All members have shut down, and no batch runs on any of them.
struct Bye {};

// From now on submissions of these ids are counted in the gate (gate.h) and not sent as Ready.
struct Freeze {
  std::vector<EntryId> ids;
  std::vector<Place> places;  // one for each id
};
// From now on submissions of these are sent as Ready again, as is what the gate has not started.
struct Thaw {
  std::vector<Place> places;
};
// A member to the coordinator: "this can't go on here as it is frozen, thaw it."
struct Deviate {
  Place place = kNoPlace;
};

// For people: what is missing. Changes no state.
struct Stall {
  std::string text;
};

// The job is over, on every rank.
struct Abort {
  ErrorCode code = ErrorCode::Internal;
  std::string text;
};

// A member asks another one: "tell me when you have an entry of this name that is unserved".
struct Seek {
  std::string name;
};
// The answer, at once or when the entry is submitted.
struct Found {
  std::string name;
  bool gone = false;  // there is none, and none comes: the member has shut down
};

using Item =
    std::variant<Ready, Refused, Join, Shutdown, Ping, Pong, Plan, Fail, Unused, Joined, Bye, Stall,
                 Abort, Drained, Freeze, Thaw, Deviate, RingItem, Seek, Found, Eager>;

// Whether it is a record of the log.
inline bool is_record(const Item& item) {
  return std::holds_alternative<Plan>(item) || std::holds_alternative<Fail>(item) ||
         std::holds_alternative<Unused>(item) || std::holds_alternative<Joined>(item) ||
         std::holds_alternative<Bye>(item) || std::holds_alternative<Freeze>(item) ||
         std::holds_alternative<Thaw>(item);
}

// Whether a member says with this item that nobody should wait for its votes.
inline bool is_away_item(const Item& item) {
  return std::holds_alternative<Join>(item) || std::holds_alternative<Shutdown>(item) ||
         std::holds_alternative<Drained>(item);
}

// One message between two ranks: several items of one process set.
struct Envelope {
  uint32_t set = 0;
  uint64_t applied = 0;  // records that the sender had applied
  std::vector<Item> items;
};

}  // namespace horon::core
