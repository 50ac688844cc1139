// One rank's side of a process set: sends its votes, applies the log (PROTOCOL.md, section 3).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "horon/core/base/statistics.h"
#include "horon/core/negotiation/eager_votes.h"
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
    int index = 0;           // of this member in `ranks`
    std::vector<int> ranks;  // of all members, as EntrySpec::root and texts name them
    Gate* gate = nullptr;    // may be null; outlives the member
    // Other members have other gates: then the coordinator says what starts.
    bool several_hosts = false;
    bool sends_eagerly = false;  // its votes for small entries carry the elements
    bool first_of_host = false;  // passes on between the gate and the coordinator
    Nanos thaw_after = 0;        // see Controller::Options
    // Limits of batches that the gate starts; the same on all members.
    int64_t fusion_bytes_max = 64 << 20;
    int64_t alone_bytes = 256 << 10;
    int batches_in_flight_max = 2;  // what small entries wait for, to run together
  };
  explicit Member(Options options);

  // A submission under a name that is still unserved, or after join() or shutdown(), finishes with
  // an error at once; nothing is sent.
  void submit(Request request, Effects& effects);
  // The call with this name was wrong on this rank: it must fail with this text on the others.
  void refuse(const std::string& name, const std::string& text);
  void join(Ticket ticket, Effects& effects);
  void shutdown();

  // As Controller::batch_enqueued(), but called for every batch in `effects.starts`.
  void batch_enqueued() { ++batches_enqueued_; }
  // One of the batches in `effects.starts` has ended here.
  void batch_finished();

  // Takes what another member has sent with its vote.
  void take_eager(int from, const Eager& eager, Effects& effects);
  // Starts the entry if all members, this one too, have sent their elements for it.
  void gather(EntryId id, Effects& effects);
  // Takes the next record of the log. While anything is frozen it waits for its marker in the ring.
  void hear(const Item& record, Effects& effects);
  // For the first member of each host but the coordinator's: appends the next item of the
  // coordinator's ring to the ring of this host, once there is room.
  void copy(const RingItem& item) { copies_.push_back(item); }
  bool may_copy() const {
    return options_.gate != nullptr && options_.several_hosts && options_.first_of_host;
  }
  // For the coordinator: all hosts have filled this place.
  void all_hosts_filled(Place place);
  // Reads the ring, as far as the log has come. True if anything was done.
  bool advance(Effects& effects);

  // Sets the time. Sends a Deviate for each filled entry that has waited for thaw_after.
  void set_time(Nanos now);
  // This process stood still for so long.
  void forgive(Nanos gap) { frozen_.forgive(gap); }

  // Items for the coordinator since the last call.
  std::vector<Item> take_news() { return std::exchange(news_, {}); }
  // Items for all members since then. They go before the others.
  std::vector<Eager> take_eager_news() { return std::exchange(eager_news_, {}); }

  // Ends everything that is unserved with this error.
  void fail_all(const Error& error, Effects& effects);

  // There is a submission or a refusal under this name, and no record or Go has ended it yet.
  bool has_said(const std::string& name);
  // A submission or a join() of this rank has no result yet.
  bool has_unserved() const {
    return !unserved_.empty() || frozen_.filled() > 0 || join_ticket_.has_value();
  }
  // The same without refused calls, whose callers have their error already.
  bool awaits_results() const;
  // Items of the coordinator's ring wait for room in the ring of this host, until its slowest
  // member has read on.
  bool waits_for_room() const { return !copies_.empty(); }
  // What it waits for comes through the gate, without a message: a Go for what is filled here, the
  // markers of records that have come, or room for what it must append.
  bool watches_ring() const { return frozen_.filled() > 0 || !log_.empty() || waits_for_room(); }
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
    std::vector<Vote> held;  // what the program did after a refusal; said once that is served
    const Vote& last() const { return held.empty() ? said : held.back(); }
  };

  // Sends the vote, or holds it back until the Fail of an earlier refusal of this name, or until
  // the Thaw of a frozen name.
  void vote(const std::string& name, Vote vote);
  void say(const std::string& name, const Vote& vote);
  void say_ready(const Request& request);
  void fill(FrozenEntries::Entry& entry, Request request);
  void deviate(FrozenEntries::Entry& entry);
  // Sends Join and Shutdown, unless votes are held back: those go first.
  void say_away();
  // Sends Join, Shutdown and Drained again: the coordinator has dropped those that were sent before
  // the last Freeze or Thaw.
  void say_away_again();
  // Sends Drained: "nothing runs here any more", once for each number of batches.
  void say_drained();
  // While anything is frozen, a record waits for its marker in the ring. A record of a name whose
  // earlier round needs none waits for the elements that are still on their way.
  bool may_apply(const Item& record) const {
    return (!frozen_.any() || applied_ < permitted_) && !awaits_elements(record);
  }
  // The record is about a later round of an entry than this member has come to.
  bool awaits_elements(const Item& record) const;
  void apply(const Item& record, Effects& effects);
  void end_join(Effects& effects);
  void apply(const Plan& plan, Effects& effects);
  void apply(const Fail& fail, Effects& effects);
  void end_eager_round(const std::string& name);
  void apply(const Freeze& freeze);
  void apply(const Thaw& thaw);
  // All members have filled this entry, and this one must append its Go. It may wait for entries
  // that fuse with it.
  void owe_go(const FrozenEntries::Entry& entry);
  // Appends the Go that this member owes. `more`: another one follows at once.
  void append_owed_gos();
  // Appends what copy() was given, as far as there is room.
  void append_copies();
  // A Go of the ring. What it starts waits in chain_ for those that run together with it.
  void take_go(const RingItem& go, Effects& effects);
  // Starts what is in chain_.
  void start_chain(Effects& effects);
  StartEntry start_entry(const PlannedEntry& planned, bool joined_here);
  void note_details(const PlannedEntry& planned, const Request& request);
  void check(const PlannedBatch& batch) const;
  void check(const PlannedEntry& planned, const std::string& name, const EntrySpec& spec) const;
  // Takes the entry out of unserved_ and says what was held behind it. Does nothing if this member
  // said nothing under that name.
  void serve(const std::string& name, Effects& effects, const std::optional<Error>& error);
  // The name and the agreed spec of an entry; notes its id.
  std::pair<std::string, SpecPtr> learn(const PlannedEntry& planned);

  const Options options_;
  const int index_;
  const std::vector<int>& ranks_;
  const int size_;
  Nanos now_ = 0;
  Nanos next_look_ = 0;  // for frozen entries that were filled long ago
  bool leaving_ = false;
  bool leaving_said_ = false;
  std::optional<Ticket> join_ticket_;
  bool join_said_ = false;
  std::optional<int> last_joined_;  // the Joined has come, and something is unserved
  size_t held_ = 0;                 // votes that are held back, over all names
  uint64_t applied_ = 0;
  bool ended_ = false;             // Bye was applied
  uint64_t batches_started_ = 0;   // also the sequence of the next one
  uint64_t batches_enqueued_ = 0;  // or ended
  uint64_t batches_ended_ = 0;
  uint64_t drained_said_ = 0;
  std::vector<Item> news_;
  std::vector<Eager> eager_news_;
  std::unordered_map<std::string, Unserved> unserved_;
  EntryIds ids_;
  EagerVotes eager_votes_;
  // Of those entries of the latest Plan that have any. A Freeze that follows the Plan keeps them.
  std::unordered_map<EntryId, PlanDetails> details_;
  FrozenEntries frozen_;
  std::vector<Place> owed_gos_;  // places that all members have filled
  int64_t owed_bytes_ = 0;       // of their entries
  uint64_t owed_since_ = 0;      // batches_started_ when the first of them was filled
  std::vector<FrozenEntries::Entry*> chain_;
  std::vector<Place> started_places_;
  std::deque<RingItem> copies_;  // items of the coordinator's ring that this host's lacks
  std::deque<Item> log_;         // records that have arrived and wait for their markers
  uint64_t permitted_ = 0;       // position in the log that the ring has reached
  Statistics statistics_;
};

}  // namespace horon::core
