// What the controller asks its caller to do: send messages, start batches, finish submissions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/shared_bytes.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::core {

// Virtual or real time, in nanoseconds since any fixed point.
using Nanos = int64_t;

// Identifies a submission between the runtime, which chooses it, and the controller.
using Ticket = uint64_t;

struct StartEntry {
  // Empty: this member has joined, and takes part with neutral elements.
  std::optional<Ticket> ticket;
  std::string name;
  SpecPtr spec;
  std::vector<bool> produced;    // per part: somebody has it; empty: all
  std::vector<int64_t> extents;  // has_own_rows(): see told_extents.h
};

// Run these entries as one collective. Batches are started in the order in which they are given
// out.
struct StartBatch {
  uint64_t sequence = 0;
  int contributors = 0;  // members that have not joined: what Average divides by
  std::vector<StartEntry> entries;
};

// This submission is over without a collective.
struct Finished {
  Ticket ticket = 0;
  std::optional<Error> error;  // empty: unused (see Unused), or join() returns
  int last_joined = -1;        // join(): who came last
};

// All members have sent their elements of this submission (Eager): it is over once they are
// reduced.
struct GatheredEntry {
  Ticket ticket = 0;
  std::string name;
  std::vector<std::vector<std::byte>> elements;  // by member
};

struct Outgoing {
  int to = 0;
  SharedBytes bytes;  // shared by messages with the same items
};

struct Effects {
  std::vector<Outgoing> messages;
  std::vector<StartBatch> starts;
  std::vector<GatheredEntry> gathered;
  std::vector<Finished> finished;
  std::vector<Found> found;           // answers to Controller::seek()
  std::vector<std::string> warnings;  // lines for people
  std::optional<Error> fatal;         // the job is over: end every handle with this
  bool bye = false;                   // every member has shut down: stop
  // Emptied lists of batches that have started, for the next batches.
  std::vector<std::vector<StartEntry>> spare_entries;

  // Keeps the memory for the next effects.
  void clear() {
    messages.clear();
    starts.clear();
    gathered.clear();
    finished.clear();
    found.clear();
    warnings.clear();
    fatal.reset();
    bye = false;
  }
  StartBatch& add_start() {
    StartBatch& start = starts.emplace_back();
    if (spare_entries.empty()) return start;
    start.entries = std::move(spare_entries.back());
    spare_entries.pop_back();
    return start;
  }
};

}  // namespace horon::core
