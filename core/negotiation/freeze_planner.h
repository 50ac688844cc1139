// What the coordinator freezes and thaws (PROTOCOL.md, section 12): who has come often enough, what
// is frozen now, and which items were sent before the sender had seen the latest Freeze or Thaw.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "horon/core/negotiation/fusion_planner.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::core {

class FreezePlanner {
 public:
  // A name is frozen when it was planned so often in a row, at first. 0: never.
  explicit FreezePlanner(int need) : need_(need) {}

  // An entry is planned under this id. `may_freeze`: else the row of its plans begins anew.
  void planned(EntryId id, const ClosedEntry& entry, bool may_freeze);
  // An entry of this name ended without a plan.
  void not_planned(const std::string& name);

  // A member says that this place can't stay frozen. False if it was never given.
  bool deviate(Place place);
  // The gate has started so many entries, of any names.
  void note_starts(uint64_t entries) { starts_ += entries; }
  // Join, Shutdown and what follows it, from a member that had applied `applied` records: true if
  // it must be dropped, because something is frozen (then all is thawed) or the sender had not seen
  // the last Freeze or Thaw. It will say that again.
  bool drops_away(uint64_t applied);

  bool any_frozen() const { return !frozen_.empty(); }
  bool is_frozen(const std::string& name) const;
  // No counter was free for a name that should have been frozen.
  bool ran_out() const { return ran_out_; }

  // Append to the log what is due: first what thaws, and behind all that this decision plans what
  // freezes, unless somebody is away. `position`: records of the log before this decision.
  void thaw(std::vector<Item>& log, uint64_t position);
  void freeze(std::vector<Item>& log, uint64_t position, bool anybody_away);

 private:
  struct History {
    EntryId id = kNoId;
    std::vector<bool> produced;  // in the latest plan, see ClosedEntry
    int streak = 0;
    int need = 0;
    Place place = kNoPlace;
    uint64_t frozen_at = 0;  // value of starts_ when it was frozen
  };

  bool counter_is_free(Place place) const;

  const int need_;
  // By name. Names without an id are not in it, so it is bounded as they are.
  std::unordered_map<std::string, History> names_;
  std::map<Place, History*> frozen_;
  std::vector<History*> to_freeze_;  // planned in this decision
  std::vector<Place> to_thaw_;
  bool thaw_all_ = false;
  bool somebody_goes_ = false;  // has been dropped, and will say again that it goes
  Place last_place_ = kNoPlace;
  uint64_t starts_ = 0;
  uint64_t touched_ = 0;  // records of the log up to the last Freeze or Thaw
  bool ran_out_ = false;
};

}  // namespace horon::core
