// The words of the control protocol as plain values (core/negotiation/PROTOCOL.md tells the story).
//
// Members send Ready, Refused, Join, Shutdown and Drained up to the coordinator of their set. The
// coordinator appends records (Plan, Fail, Unused, Joined, Bye) to the set's log, which every
// member applies in order. Ping, Pong, Stall and Abort stand outside the log.
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

namespace horon::core {

// A (name, spec) that has been agreed before: saves sending both again. 0 is "not cached".
using EntryId = uint32_t;
inline constexpr EntryId kNoId = 0;
inline constexpr EntryId kIdsMax = 65536;

using SpecPtr = std::shared_ptr<const EntrySpec>;

// "My entry is here." By id if it was agreed before, else by name and spec.
struct Ready {
  EntryId id = kNoId;
  std::string name;          // empty if id is given
  SpecPtr spec;              // null if id is given
  std::vector<bool> absent;  // per part: this rank has nothing for it; empty: all parts are here
  std::vector<int64_t> extents;  // has_own_rows(): see extents_of_part(), part by part
};

// "My program's call was wrong": the entry must fail alike everywhere.
struct Refused {
  std::string name;
  std::string text;
};

struct Join {};
struct Shutdown {};

// Behind Shutdown: "all batches that the log has started have ended here, and so many they were."
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
  std::string
      name;  // with its spec in the first plan of an id, and always without an id; else empty
  SpecPtr spec;
  std::vector<bool> produced;    // per part: somebody has it; empty: all parts
  std::vector<int64_t> extents;  // has_own_rows(): of each member, one after the other
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
};

// Nobody produced anything for this entry.
struct Unused {
  std::string name;
};

struct Joined {
  int32_t last = 0;
};
// All members have shut down, and no batch runs on any of them.
struct Bye {};

// For people: what is missing. Changes no state.
struct Stall {
  std::string text;
};

// The job is over, on every rank.
struct Abort {
  ErrorCode code = ErrorCode::Internal;
  std::string text;
};

using Item = std::variant<Ready, Refused, Join, Shutdown, Ping, Pong, Plan, Fail, Unused, Joined,
                          Bye, Stall, Abort, Drained>;

// What travels between two ranks at once: several items of one process set.
struct Envelope {
  uint32_t set = 0;
  uint32_t epoch = 0;    // freezes and thaws that the sender had seen
  uint64_t applied = 0;  // records that the sender had applied
  std::vector<Item> items;
};

}  // namespace horon::core
