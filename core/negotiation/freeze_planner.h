// What the coordinator freezes and thaws (PROTOCOL.md, section 12): which names have come often
// enough, which are frozen now, and which items were sent before the sender had seen the latest
// Freeze or Thaw.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "horon/core/negotiation/fusion_planner.h"
#include "horon/core/negotiation/gate.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::core {

class FreezePlanner {
 public:
  // A name is first frozen when it was planned `need` times in a row; 0: never. `frozen_max`: names
  // that are frozen at a time, at most Gate::kCounters.
  explicit FreezePlanner(int need, size_t frozen_max = Gate::kCounters);

  // An entry is planned under this id. `may_freeze` false: its count of plans in a row begins anew.
  // `numbers_told`: how many extents each member is told (told_extents.h).
  void planned(EntryId id, const ClosedEntry& entry, size_t numbers_told, bool may_freeze);
  // The name's count of plans in a row begins anew: an entry ended without a plan, or the next plan
  // is the first of a spec that gets an id.
  void break_row(const std::string& name);

  // A member says that this place can't stay frozen. False if it was never given.
  bool deviate(Place place);
  // The gate has started the entry of this place.
  void note_start(Place place);
  // A Join, Shutdown or Drained has come from a member that had applied `applied` records. True:
  // drop it; the member sends it again. That is so while anything is frozen (all of it then thaws),
  // or if the member had not seen the latest Freeze or Thaw.
  bool drops_away(uint64_t applied);

  bool any_frozen() const { return !frozen_.empty(); }
  bool is_frozen(const std::string& name) const;
  bool is_frozen(Place place) const { return frozen_at(place) != nullptr; }
  // Some Freeze has used this number.
  bool was_given(Place place) const { return place != kNoPlace && place <= last_place_; }
  // A name was due to be frozen, but got no place.
  bool ran_out() const { return ran_out_; }

  // Append the due records to the log. Call thaw() first. Call freeze() after the plans of this
  // decision; it freezes nothing while a member is away, and first thaws names that lose their
  // places. `position`: records of the log before this decision.
  void thaw(std::vector<Item>& log, uint64_t position);
  void freeze(std::vector<Item>& log, uint64_t position, bool anybody_away);

 private:
  struct History {
    EntryId id = kNoId;
    std::vector<bool> produced;  // in the latest plan, see ClosedEntry
    // Hash of its extents. A collision is harmless: members freeze the extents of the latest plan.
    uint64_t rows = 0;
    int streak = 0;
    int need = 0;
    uint64_t seen = 0;         // value of events_ when it was planned or started last
    uint64_t longest_gap = 0;  // events between two plans of the streak
    Place place = kNoPlace;
    bool thaws = false;   // its place is in to_thaw_
    uint64_t starts = 0;  // since it was frozen
    std::list<History*>::iterator in_frozen;
  };

  History* frozen_at(Place place) const;
  void settle_need(History& history) const;
  void release(History& history);
  bool make_room(const History& wanted, std::vector<Place>& given_up);
  Place next_place() const;

  const int need_;
  const size_t frozen_max_;
  // By name. Names without an id are not in it, so it is bounded as the ids are.
  std::unordered_map<std::string, History> names_;
  std::list<History*> frozen_;        // the one that was seen longest ago comes first
  std::vector<History*> by_counter_;  // [place % Gate::kCounters]; null: free
  std::array<uint64_t, Gate::kCounters / 64> used_counters_{};  // a bit for each
  std::vector<History*> to_freeze_;                             // planned in this decision
  std::vector<Place> to_thaw_;
  bool thaw_all_ = false;
  bool somebody_goes_ = false;  // a Join, Shutdown or Drained was dropped and will come again
  Place last_place_ = kNoPlace;
  uint64_t events_ = 0;   // entries that were planned or started
  uint64_t touched_ = 0;  // records of the log up to the last Freeze or Thaw
  bool ran_out_ = false;
};

}  // namespace horon::core
