// The entries that are frozen for one member, and which it has filled (PROTOCOL.md, section 12).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "horon/core/negotiation/request.h"

namespace horon::core {

// An entry of which a member is told more extents than this is not frozen: the member would have to
// keep them.
inline constexpr size_t kFrozenExtentsMax = 4096;

// What may differ from one plan of an id to the next, but not while it is frozen.
struct PlanDetails {
  std::vector<bool> absent;    // what this member has said: see Ready
  std::vector<int64_t> said;   // its extents
  std::vector<bool> produced;  // what the plan says: see PlannedEntry
  std::vector<int64_t> extents;
};

class FrozenEntries {
 public:
  struct Entry {
    Place place = kNoPlace;
    SpecPtr spec;    // used for every start: prepared batches are found by its address
    SpecPtr latest;  // of the latest submission: equal to `spec`; compared by address first
    PlanDetails details;
    int64_t bytes = 0;
    bool fuses = false;  // see may_fuse()
    bool filled = false;
    bool started = false;   // its Go has been read; it is filled until its batch starts
    bool deviated = false;  // the coordinator has been told
    Nanos filled_at = 0;
    Request request;  // while filled
  };

  // `alone_bytes`: see FusionPlanner.
  explicit FrozenEntries(int64_t alone_bytes) : alone_bytes_(alone_bytes) {}

  // False if no coordinator can have frozen that entry.
  bool add(const std::string& name, const SpecPtr& spec, PlanDetails details, Place place);
  // Sets `name` to that of the place, and `unstarted` to what was filled and not started. False if
  // the place is not frozen.
  bool remove(Place place, std::string& name, std::optional<Request>& unstarted);

  // Null if it is not frozen.
  // Its address stays until it is removed.
  Entry* find(const std::string& name);
  Entry* find(Place place);
  bool any() const { return !by_name_.empty(); }

  // Whether this submission is what was frozen.
  static bool fits(const Entry& entry, const Request& request);
  void fill(Entry& entry, Request request, Nanos now);
  Request take(Entry& entry);
  size_t filled() const { return filled_; }
  // Entries that were filled before `time` and about which the coordinator has not been told; they
  // count as told now.
  std::vector<Place> waiting_since(Nanos time);
  // This process stood still for so long: the ages of entries do not count that time.
  void forgive(Nanos gap);
  // Returns all that is filled; nothing is frozen afterwards.
  std::vector<Request> clear();

 private:
  using ByName = std::unordered_map<std::string, Entry>;

  const int64_t alone_bytes_;
  ByName by_name_;
  std::vector<ByName::value_type*> by_counter_;  // [place % Gate::kCounters]
  size_t filled_ = 0;
  Place last_place_ = kNoPlace;
};

}  // namespace horon::core
