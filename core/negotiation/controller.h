// The control protocol of one rank in one process set, as a pure machine: submissions, messages and
// ticks go in; messages, batches to start and finished submissions come out. No thread, no clock,
// no I/O, no environment.
//
// So a test can run thousands of controllers in one thread, under one seed and a virtual clock. The
// runtime is a thin loop around one.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "horon/core/negotiation/coordinator.h"
#include "horon/core/negotiation/effects.h"
#include "horon/core/negotiation/liveness.h"
#include "horon/core/negotiation/member.h"
#include "horon/core/negotiation/outbox.h"
#include "horon/core/negotiation/spreading_gate.h"

namespace horon::core {

class Controller {
 public:
  // With more of them, the messages from each to all others would take longer than a record.
  static constexpr int kEagerMembersMax = 8;

  struct Options {
    int rank = 0;  // among the members
    int size = 1;
    std::vector<int> ranks = {};  // as EntrySpec::root and texts name members; empty: 0, 1, ...
    // By member, numbered in the order of each host's first member; empty: all are on one host.
    std::vector<int> host_of = {};
    // Members on several hosts may send Eager, if there are at most kEagerMembersMax.
    bool eager = false;
    uint32_t set = 0;        // its number, in every message
    bool may_leave = false;  // members leave the set when they like, and their jobs go on
    int64_t fusion_bytes_max = 64 << 20;
    int64_t alone_bytes = 256 << 10;
    int batches_in_flight_max = 2;
    Nanos ask_after = 1'000'000'000;    // silence after which a peer is asked whether it lives
    Nanos dead_after = 10'000'000'000;  // 0: never, and nobody is asked
    Nanos stall_warn_after = 10'000'000'000;  // 0: never
    Nanos stall_abort_after = 0;              // 0: never
    // Shared by the members of one host. All members have one or none has. Outlives the controller.
    Gate* gate = nullptr;
    int freeze_after = 3;  // an entry is frozen after so many plans in a row; 0: never
    size_t frozen_max = Gate::kCounters;  // names that are frozen at a time
    // A frozen entry thaws when it has been filled here for so long and has not started.
    Nanos thaw_after = 1'000'000'000;
  };

  explicit Controller(const Options& options);
  ~Controller();

  void submit(Request request);
  void refuse(const std::string& name, const std::string& text);
  void join(Ticket ticket);
  void shutdown();
  // As shutdown(), but does not wait for Bye: while only Bye is missing, this member does not ask
  // whether the others are alive. Does nothing after shutdown().
  void leave();

  // Takes an envelope that rank `from` sent; bytes that can't be read end the job. After Bye only a
  // Ping and an Abort count: another process set of the job may still run.
  void receive(int from, std::span<const std::byte> bytes);
  // All of one batch given out earlier is now in its device's queue: planning no longer waits for
  // it. Call this only for a batch on a device, before it finishes.
  void batch_enqueued();
  // One batch given out earlier has finished here.
  void batch_finished(bool was_enqueued = false);
  // Sends all other members a Ping: one that did not know of the set learns of it.
  void greet();
  // Asks all other members for an entry of this name. Effects::found tells when a member has one,
  // now or later, or that it has left, but not which one: in a set of two it is the other one.
  void seek(const std::string& name);
  // So many more (or fewer) wait for such answers. While any does, this member is not at rest.
  void expect_found(int change);
  // Ends the set with this error, here and on every member.
  void fail(const Error& error);
  // The time of all events until the next call. A gap of more than 3 s means that this process
  // stood still: that time counts against nobody.
  void set_time(Nanos now);
  // Sets the time and looks for what has taken too long. Call it at least once per second while not
  // at_rest(), and between shutdown() and Bye. Hand over the messages that have come first: one of
  // them may be the answer of a peer that seems silent.
  void tick(Nanos now);

  // What to do now, since the last call. Also decides and packs the messages: call it after each
  // round of events.
  Effects take_effects();
  // The same, into memory that the caller uses again for each call.
  void take_effects(Effects& effects);

  // No submission is pending and no batch runs: no tick is needed.
  bool at_rest() const;
  // Whether Request::elements are of use in this set.
  bool sends_eagerly() const { return sends_eagerly_; }
  // Until the next event take_effects() brings nothing, and tick() is not urgent: the member rests,
  // or waits for messages or for batches. Call it after take_effects().
  bool is_idle() const { return !member_.watches_ring() && !waits_for_room_; }
  // Something that this rank has submitted, or that runs here, has not ended. What the others still
  // wait for does not count.
  bool has_own_work() const {
    return member_.awaits_results() || member_.batches_running() > 0 || member_.waits_for_room();
  }
  // This rank waits for messages from other members, Bye included.
  bool waits() const { return !fatal_ && !ended_ && (!at_rest() || awaits_end()); }
  // The error that has ended the set, if one has.
  const std::optional<Error>& fatal() const { return fatal_; }
  bool is_coordinator() const { return coordinator_ != nullptr; }
  // What is missing, by the latest report that this rank has; empty if nothing is.
  const std::string& stall_text() const { return stall_text_; }
  const Coordinator* coordinator() const { return coordinator_.get(); }
  const Member& member() const { return member_; }
  // All statistics but those of what is in flight, which the runner of the set counts.
  Statistics statistics() const;

 private:
  void take_item(int from, const Item& item, uint64_t applied);
  void take_ring_item(int from, const RingItem& item, uint64_t applied);
  void take_eager(int from, const Eager& eager, uint64_t applied);
  void take_record(int from, const Item& item);
  // Reads the ring of the gate. True if anything was done.
  bool advance();
  void settle_news();
  std::vector<Item> decide();
  std::string due_warning();
  void tell_what_is_missing();
  void renew_stall_text();
  void take_seek(int from, const std::string& name);
  void answer_seekers(const std::string& name);
  void ask(int peer);
  void ask_everybody(int but);
  void forgive(Nanos gap);
  bool awaits_end() const { return member_.leaving() && !patient_; }
  void tick_coordinator();
  void end(const Error& error);

  static Options complete(Options options);
  bool several_hosts() const;
  Gate* gate() { return spreading_gate_ ? &*spreading_gate_ : options_.gate; }
  Member::Options member_options();
  int name_of(int member) const { return options_.ranks[static_cast<size_t>(member)]; }

  const Options options_;
  const bool sends_eagerly_;
  Outbox outbox_;
  std::optional<SpreadingGate> spreading_gate_;  // coordinator, if there are several hosts
  Member member_;
  std::unique_ptr<Coordinator> coordinator_;
  Liveness liveness_;
  Effects effects_;
  std::optional<Error> fatal_;
  bool ended_ = false;
  bool patient_ = false;                         // leave() was called: does not wait for Bye
  std::map<std::string, std::set<int>> sought_;  // names that others seek, and who does
  int expected_ = 0;                             // see expect_found()
  Nanos now_ = 0;
  bool clock_is_set_ = false;
  Nanos last_progress_ = 0;  // a record or elements came, or a submission while none was pending
  Nanos last_warning_ = 0;
  Nanos warning_gap_ = 0;        // until a lasting stall is warned of again: doubles each time
  Nanos newest_warned_ = -1;     // when the youngest entry that was warned of was opened
  bool waits_for_room_ = false;  // coordinator: the ring of the gate is full, so nothing is decided
  bool told_of_ids_ = false;
  bool told_of_places_ = false;
  uint64_t messages_sent_ = 0;
  uint64_t messages_received_ = 0;
  uint64_t frozen_batches_told_ = 0;  // to the coordinator, which counts what runs
  Nanos next_look_ = 0;               // coordinator: for open entries that are too old
  Nanos next_roll_call_ = 0;          // coordinator: when it may ask everybody again
  uint64_t ping_number_ = 0;
  std::string stall_text_;
  std::vector<StalledEntry> told_stalled_;  // coordinator: what stall_text_ is about
  Nanos next_report_ = 0;                   // coordinator: tells of the same entries' new age
};

}  // namespace horon::core
