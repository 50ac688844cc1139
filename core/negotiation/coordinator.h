// The one member of a process set that decides: collects what the members say and appends records
// to the set's log (PROTOCOL.md, section 4).
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "horon/core/negotiation/effects.h"
#include "horon/core/negotiation/entry_ids.h"
#include "horon/core/negotiation/filled_hosts.h"
#include "horon/core/negotiation/freeze_planner.h"
#include "horon/core/negotiation/fusion_planner.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::core {

// An open entry on which some members have not voted.
struct StalledEntry {
  std::string name;
  std::vector<int> silent;  // members without a vote
  Nanos opened = 0;
  bool operator==(const StalledEntry&) const = default;
};

class Coordinator {
 public:
  struct Options {
    std::vector<int> ranks = {0};  // of all members, as EntrySpec::root and texts name them
    bool may_leave = false;        // see Controller::Options
    int64_t fusion_bytes_max = 64 << 20;
    int64_t alone_bytes = 256 << 10;
    // While so many batches run and less than fusion_bytes_max is ready, planning waits, so that
    // later entries fuse. A batch no longer counts once it is in its device's queue.
    int batches_in_flight_max = 2;
    int freeze_after = 0;  // see Controller::Options
    size_t frozen_max = Gate::kCounters;
    std::vector<int> host_of = {};  // see Controller::Options
    bool eager = false;             // members may send Eager
  };

  static constexpr size_t kReportedMax = 10;

  explicit Coordinator(const Options& options);

  // Takes one item of a member that had applied `applied` records: Ready, Refused, Join, Shutdown,
  // Drained, Deviate, Filled, Eager. Throws Error(Internal) if the member breaks the protocol.
  void take(int from, const Item& item, uint64_t applied, Nanos now);
  // The gate has started so many batches on this rank, with the entries of these places.
  void frozen_started(uint64_t batches, std::span<const Place> places);
  // As Controller::batch_enqueued(), but called for every batch.
  void batch_enqueued() { ++batches_enqueued_; }
  // A batch of this set has finished on this rank.
  void batch_finished() { --in_flight_; }
  // Appends to the log what can be decided now. Call it after take() of all messages that have
  // come.
  std::vector<Item> decide();
  // How many records decide() has given out.
  uint64_t log_size() const { return log_size_; }
  bool any_frozen() const { return freezer_.any_frozen(); }
  // Places that all hosts have filled, since the last call.
  std::vector<Place> take_filled_places() { return std::exchange(filled_places_, {}); }
  // A name was due to be frozen, but no place was free and none could be taken from another name.
  bool places_are_used_up() const { return freezer_.ran_out(); }

  // Members without a vote in some entry that has been open for `age`; in ascending order.
  std::vector<int> missing_members(Nanos now, Nanos age) const;
  // The open entries in the order in which they were opened, each with the members that others wait
  // for.
  std::vector<std::pair<std::string, std::vector<int>>> open_entries() const;
  // The open entries that stall_report() of this age names; at most kReportedMax.
  std::vector<StalledEntry> stalled_entries(Nanos now, Nanos age) const;
  bool is_open(const std::string& name) const { return by_name_.contains(name); }
  // This process itself stood still for so long: the age of entries does not count that time.
  void forgive(Nanos gap);
  // What people should know about entries that have been open for `age`; empty if there is none.
  std::string stall_report(Nanos now, Nanos age) const;

  // If for `age` some members have called shutdown() or join() and others have not: who has and who
  // has not. If all have called shutdown(): on which ranks collectives still run. Else empty, also
  // if members have left a process set that they may leave at any time.
  std::string away_report(Nanos now, Nanos age) const;

  // All ids have been given: further names are sent in full each time.
  bool ids_are_used_up() const { return ids_.used_up(); }

  bool at_rest() const { return entries_.empty() && in_flight_ == 0 && planner_.empty(); }

 private:
  struct Vote {
    enum class Kind : uint8_t { None, Ready, Refused };
    Kind kind = Kind::None;
    bool wants_eager = false;  // Ready::eager
    bool eager = false;        // Ready, and all members have been sent the elements
    SpecPtr spec;
    std::vector<bool> absent;
    std::vector<int64_t> extents;
    std::string refusal;
  };
  struct Entry {
    std::string name;
    std::vector<Vote> votes;  // by member
    int awaited = 0;          // members that have neither spoken nor joined nor shut down
    Nanos opened = 0;
    bool disagree = false;
    bool refused = false;
    bool complete() const { return awaited == 0; }
  };
  using EntryIterator = std::list<Entry>::iterator;

  // What a member has said behind its Eager for an entry that still lacks another member's. It has
  // heard from all, so that one is on its way; until it comes, the member's words wait here.
  struct Ahead {
    Item item;
    uint64_t applied = 0;
  };
  // Whether the item must wait behind an entry that the member knows to be served.
  bool is_ahead(int from, const Item& item) const;
  const std::string* name_of(const Item& item) const;
  // Takes what has waited for entries that are closed now. True if that completes others.
  bool catch_up();
  void take_now(int from, const Item& item, uint64_t applied, Nanos now);
  void take_eager(int from, const Eager& eager, Nanos now);
  static bool is_served_eagerly(const Entry& entry);
  // The name is served: returns the round that ends so, as members count it (eager_votes.h).
  uint64_t end_round(const std::string& name);

  void take_ready(int from, const Ready& ready, Nanos now);
  void take_refused(int from, const Refused& refused, Nanos now);
  void take_drained(int from, const Drained& drained);
  void take_filled(int from, const RingItem& filled);
  // All that each member must say in Drained, as far as is known here.
  uint64_t to_drain() const { return batches_planned_ + eager_served_; }
  // Every batch of the log has ended on every member, as each has said after its Shutdown, and
  // every entry that needed no record.
  bool all_drained() const;
  Entry& open(const std::string& name, Nanos now);
  Vote& vote_of(Entry& entry, int from);
  // One member fewer is awaited. When none is, the entry is complete.
  void one_less(Entry& entry);
  bool away(size_t member) const { return joined_[member] || shut_[member]; }
  void set_away(size_t member, std::vector<bool>& flags, Nanos now);
  void close(Entry& entry, std::vector<Item>& log);
  std::optional<Fail> verdict(const Entry& entry) const;
  ClosedEntry closed(const Entry& entry) const;
  std::string mismatch_text(const Entry& entry) const;
  void plan(std::vector<Item>& log, bool everything);
  bool planning_waits() const;
  PlannedEntry planned(ClosedEntry entry, bool may_freeze);
  std::vector<int> silent_members(const Entry& entry) const;
  static std::vector<int> members_with(const Entry& entry, Vote::Kind kind);
  size_t count_stalled(Nanos now, Nanos age) const;
  // What stall_report() has named.
  struct Reported {
    const std::string* name;
    std::vector<int> ready, silent;
  };
  std::string waiting_for_each_other(const std::vector<Reported>& reported) const;
  std::optional<Fail> fault_of_joined(const Entry& entry, const std::vector<int>& joined) const;

  // "rank 1", "ranks 1 and 2"
  std::string name_members(const std::vector<int>& members) const;
  [[noreturn]] void broken(int member, const std::string& what) const;
  size_t extents_said(const EntrySpec& spec, size_t member) const;

  const Options options_;
  const int size_;
  FusionPlanner planner_;
  FreezePlanner freezer_;
  FilledHosts filled_hosts_;
  std::vector<Place> filled_places_;
  uint64_t log_size_ = 0;
  std::list<Entry> entries_;  // in the order in which they were opened
  std::unordered_map<std::string, EntryIterator> by_name_;
  std::vector<EntryIterator> complete_;  // in the order in which they became complete
  std::vector<bool> joined_;
  std::vector<bool> shut_;
  int away_count_ = 0;  // joined or shut down or both
  int shut_count_ = 0;
  Nanos away_since_ = 0;  // since when the first of them is
  int last_joined_ = -1;  // since the last Joined record; -1: nobody
  bool ended_ = false;
  uint64_t batches_planned_ = 0;   // by the planner, or started by the gate
  uint64_t batches_enqueued_ = 0;  // on this rank, or finished
  // Planning waits until this many batches are enqueued or finished: those that were planned before
  // the oldest entry came to planner_, and those that plan() has made since.
  uint64_t awaited_batches_ = 0;
  std::vector<uint64_t> drained_;  // [member]: batches in its latest Drained
  uint64_t drained_sum_ = 0;       // of drained_
  int in_flight_ = 0;
  EntryIds ids_;
  std::vector<std::deque<Ahead>> ahead_;  // by member
  size_t ahead_count_ = 0;
  uint64_t eager_served_ = 0;  // entries that needed no record
  std::unordered_map<EntryId, uint64_t> rounds_;
  Nanos now_ = 0;  // of the latest item
};

}  // namespace horon::core
