// Which closed entries run together as one collective. Only the coordinator plans, so every rank
// fuses alike.
//
// Entries are taken in the order in which they closed. A batch takes entries that are equal in
// everything that one collective shares (kind, dtype, op, device, scales, root, joined members), up
// to bytes_max; an entry that differs is skipped and keeps its place for the next batch. An entry
// of at least alone_bytes is never packed with others: copying it into and out of a fusion buffer
// costs more than a start of its own. An entry with blocks of int8 runs alone too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "horon/core/negotiation/protocol.h"

namespace horon::core {

// An entry on which every member has voted and which no vote rejects.
struct ClosedEntry {
  std::string name;
  SpecPtr spec;
  std::vector<bool> produced;    // per part: somebody has it; empty: all
  std::vector<int64_t> extents;  // has_own_rows(): of each member, one after the other
  std::vector<int> joined;       // members without a vote that have joined
  bool eager = false;            // see Ready
};

// The bytes of all parts.
int64_t byte_count(const EntrySpec& spec);
// Whether an entry of so many bytes may run together with others.
bool may_fuse(const EntrySpec& spec, int64_t bytes, int64_t alone_bytes);
// Whether two entries that may fuse are equal in everything that one collective shares.
bool same_collective(const EntrySpec& a, const EntrySpec& b);

class FusionPlanner {
 public:
  FusionPlanner(int64_t bytes_max, int64_t alone_bytes)
      : bytes_max_(bytes_max), alone_bytes_(alone_bytes) {}

  void add(ClosedEntry entry);
  bool empty() const { return waiting_.empty(); }
  // Bytes of everything that waits.
  int64_t ready_bytes() const { return ready_bytes_; }
  int64_t bytes_max() const { return bytes_max_; }
  // The next batch, at least one entry; call only if not empty().
  std::vector<ClosedEntry> take_batch();

 private:
  struct Waiting {
    ClosedEntry entry;
    int64_t bytes;
  };
  using WaitingIterator = std::list<Waiting>::iterator;
  // What entries that may run together have in common.
  struct Key {
    SpecPtr spec;
    std::vector<int> joined;
    bool operator==(const Key& other) const;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  // The waiting entries with one key, in the order in which they closed.
  struct Alike {
    std::list<WaitingIterator> entries;
    int64_t bytes_min;  // none has fewer
  };

  const int64_t bytes_max_;
  const int64_t alone_bytes_;
  std::list<Waiting> waiting_;
  // A batch looks only at entries like its first one. Otherwise the time for thousands of entries,
  // all different, would grow with the square of their number.
  std::unordered_map<Key, Alike, KeyHash> alike_;
  int64_t ready_bytes_ = 0;
};

}  // namespace horon::core
