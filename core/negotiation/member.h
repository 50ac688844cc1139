// One rank's side of a process set: says what it has, applies the log (PROTOCOL.md, section 3).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "horon/core/base/statistics.h"
#include "horon/core/negotiation/effects.h"
#include "horon/core/negotiation/entry_ids.h"
#include "horon/core/negotiation/frozen_entries.h"
#include "horon/core/negotiation/gate.h"
#include "horon/core/negotiation/protocol.h"
#include "horon/core/negotiation/request.h"

namespace horon::core {

class Member {
 public:
  struct Options {
    int index = 0;           // this member's place among `ranks`
    std::vector<int> ranks;  // of all members, as people know them
    Gate* gate = nullptr;    // may be null; outlives the member
    // Other members have other gates: then the coordinator says what starts.
    bool several_hosts = false;
    bool first_of_host = false;  // passes on between the gate and the coordinator
    Nanos thaw_after = 0;        // see Controller::Options
    // Of a batch that the gate starts; the same on all members.
    int64_t fusion_bytes_max = 64 << 20;
    int64_t alone_bytes = 256 << 10;
    int batches_in_flight_max = 2;  // what small entries wait for, to run together
  };
  explicit Member(Options options);

  // A name that is unserved, or a call after join() or shutdown(), finishes with an error at once;
  // nothing is sent.
  void submit(Request request, Effects& effects);
  // The program's call was wrong here: let the others fail alike.
  void refuse(const std::string& name, const std::string& text);
  void join(Ticket ticket, Effects& effects);
  void shutdown();

  // As in Controller, here for every batch in `effects.starts`.
  void batch_enqueued() { ++batches_enqueued_; }
  // One of the batches in `effects.starts` has ended here.
  void batch_finished();

  // A record of the log, in order. It is applied as soon as the ring allows it.
  void hear(const Item& record, Effects& effects);
  // The first member of another host than the coordinator's: the next entry of the coordinator's
  // ring, for the ring here.
  void copy(const GateEntry& entry) { copies_.push_back(entry); }
  bool may_copy() const {
    return options_.gate != nullptr && options_.several_hosts && options_.first_of_host;
  }
  // The coordinator: all hosts have filled this place.
  void all_hosts_filled(Place place);
  // Reads the ring, as far as the log has come. True if anything was done.
  bool advance(Effects& effects);

  // The time of what follows. Says that it deviates where a filled entry has waited for too long.
  void set_time(Nanos now);
  // This process stood still for so long.
  void forgive(Nanos gap) { frozen_.forgive(gap); }

  // Items for the coordinator since the last call.
  std::vector<Item> take_news() { return std::exchange(news_, {}); }

  // Ends everything that is unserved with this error.
  void fail_all(const Error& error, Effects& effects);

  // Something was said and not yet served.
  bool has_unserved() const {
    return !unserved_.empty() || frozen_.filled() > 0 || join_ticket_.has_value();
  }
  // The ring has no room for something, until a slower member of this host has read on.
  bool waits_for_room() const { return !copies_.empty(); }
  std::vector<std::string> unserved_names() const;
  uint64_t applied() const { return applied_; }
  bool leaving() const { return leaving_; }
  // Batches that the log has started and that have not ended here.
  uint64_t batches_running() const { return batches_started_ - batches_ended_; }
  const Statistics& statistics() const { return statistics_; }
  // Places that the gate has started, in this order, since the caller forgot them.
  const std::vector<Place>& started_places() const { return started_places_; }
  void forget_started_places() { started_places_.clear(); }

 private:
  struct Vote {
    bool refused = false;  // no ticket: the caller has its error already
    std::string refusal;
    Request request;
  };
  struct Unserved {
    Vote said;
    std::vector<Vote> held;  // what the program did after a refusal; said when that is served
    const Vote& last() const { return held.empty() ? said : held.back(); }
  };

  // Says the vote, or holds it back: a name that was refused is free for the program, but not yet
  // for the log; and what a frozen name can't do is said behind its Thaw.
  void vote(const std::string& name, Vote vote);
  void say(const std::string& name, const Vote& vote);
  void say_ready(const Request& request);
  void fill(FrozenEntries::Entry& entry, Request request);
  void deviate(FrozenEntries::Entry& entry);
  // Join and Shutdown go behind everything that is held.
  void say_away();
  // The coordinator drops what was said before the last Freeze or Thaw: says it again.
  void say_away_again();
  // "Nothing runs here any more", once for each number of batches.
  void say_drained();
  // While anything is frozen, a record waits for its marker in the ring.
  bool may_apply() const { return !frozen_.any() || applied_ < permitted_; }
  void apply(const Item& record, Effects& effects);
  void apply(const Plan& plan, Effects& effects);
  void apply(const Fail& fail, Effects& effects);
  void apply(const Freeze& freeze);
  void apply(const Thaw& thaw);
  // This member appends its Go, as soon as nothing else should run together with it.
  void owe_go(const FrozenEntries::Entry& entry);
  // Appends the Go that this member owes. `more`: another one follows at once.
  void append_owed_gos();
  // Appends what copy() was given, as far as there is room.
  void append_copies();
  // A Go of the ring. What it starts waits in chain_ for those that run together with it.
  void take_go(const GateEntry& go, Effects& effects);
  // Starts what is in chain_.
  void start_chain(Effects& effects);
  StartEntry start_entry(const PlannedEntry& planned, bool joined_here);
  void note_details(const PlannedEntry& planned, const Request& request);
  void check(const PlannedBatch& batch) const;
  void check(const PlannedEntry& planned, const std::string& name, const EntrySpec& spec) const;
  // Takes the entry out of unserved and says what was held behind it. Nothing happens if this
  // member said nothing under that name.
  void serve(const std::string& name, Effects& effects, const std::optional<Error>& error);
  // The name and the agreed spec of an entry; notes its id.
  std::pair<std::string, SpecPtr> learn(const PlannedEntry& planned);

  const Options options_;
  const int index_;
  const std::vector<int>& ranks_;
  const int size_;
  Nanos now_ = 0;
  Nanos next_look_ = 0;  // looks for frozen entries that were filled long ago
  bool leaving_ = false;
  bool leaving_said_ = false;
  std::optional<Ticket> join_ticket_;
  bool join_said_ = false;
  size_t held_ = 0;  // votes that are held back, over all names
  uint64_t applied_ = 0;
  bool ended_ = false;             // Bye was applied
  uint64_t batches_started_ = 0;   // also the sequence of the next one
  uint64_t batches_enqueued_ = 0;  // or ended
  uint64_t batches_ended_ = 0;
  uint64_t drained_said_ = 0;
  std::vector<Item> news_;
  std::unordered_map<std::string, Unserved> unserved_;
  EntryIds ids_;
  // Of the ids of the latest Plan, if there were any: a Freeze behind it keeps them.
  std::unordered_map<EntryId, PlanDetails> details_;
  FrozenEntries frozen_;
  std::vector<Place> owed_gos_;  // places that all members have filled
  int64_t owed_bytes_ = 0;       // of their entries
  uint64_t owed_since_ = 0;      // batches_started_ when the first of them was filled
  std::vector<FrozenEntries::Entry*> chain_;
  std::vector<Place> started_places_;
  std::deque<GateEntry> copies_;  // entries of the coordinator's ring that this host's has not got
  std::deque<Item> log_;          // records that have arrived and wait for their markers
  uint64_t permitted_ = 0;        // position in the log that the ring has reached
  Statistics statistics_;
};

}  // namespace horon::core
