// A job of N controllers in one thread: programs, channels that keep their order, and collectives
// that finish on a rank only after every rank has started them. Nothing moves by itself: a driver
// chooses the next event (timed_run.h at random under a virtual clock, exploration.h in every
// order, transcripts by hand).
//
// The cluster checks what must hold at any time and notes violations; check_outcomes.h judges the
// end.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "horon/core/negotiation/controller.h"
#include "horon/tests/support/simulation/program.h"
#include "horon/tests/support/simulation/rows_of_alltoall.h"
#include "horon/tests/support/simulation/simulated_gate.h"

namespace horon::simulation {

class SimulatedCluster {
 public:
  using Bytes = std::vector<std::byte>;
  using Channels = std::map<std::pair<int, int>, std::deque<Bytes>>;  // by (from, to)

  struct Options {
    core::Controller::Options controller;  // of every rank; rank and size are filled in
    bool gate = false;                     // the ranks of each host share a gate
    bool trace = false;
    // May change any message on its way; to show that the checks notice.
    std::function<void(int from, int to, core::Envelope& envelope)> tamper;
    // The same on the level of bytes.
    std::function<void(int from, int to, Bytes& bytes)> corrupt;
  };

  struct Rank {
    std::unique_ptr<core::Controller> controller;
    Program program;
    size_t position = 0;            // the next action
    std::vector<Outcome> outcomes;  // by action
    std::map<std::string, size_t> latest;
    size_t pending = 0;
    bool leaving = false;
    bool bye = false;
    bool dead = false;
    std::optional<size_t> dies_after_sending;
    uint64_t started = 0;
    uint64_t finished = 0;  // batches, in order
    // A hash of each record of the log, in order: as it arrived, or as the coordinator made it.
    std::vector<size_t> records;
    size_t plans = 0;   // how many of them arrived, counting freezes and thaws too
    bool rung = false;  // something was appended to the ring that it may not have seen
    bool idle = false;  // the controller has said so, and no event has come since
    std::optional<Error> fatal;
    std::vector<std::string> warnings;
    // Votes that the program has made; votes, and Joins and Shutdowns, that this rank has sent.
    int votes_said = 0;
    int votes_sent = 0;
    int away_sent = 0;
    // In the coordinator's records: places that were given up for another name, and freezes of
    // entries whose ranks have rows of their own.
    int places_given_up = 0;
    int freezes_of_rows = 0;
  };

  SimulatedCluster(Options options, std::vector<Program> programs);

  const Options& options() const { return options_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  // What people call a rank: a job may be a process set of a larger world (controller.ranks).
  int name_of(int rank) const { return names_.at(static_cast<size_t>(rank)); }
  const std::vector<int>& names() const { return names_; }
  const Rank& rank(int rank) const { return ranks_.at(static_cast<size_t>(rank)); }
  const Channels& channels() const { return channels_; }

  // One more call at the end of a program.
  void add_action(int rank, Action action);
  // Makes the program's next call, with those in the same breath. It waits while can_act() is
  // false.
  bool can_act(int rank) const;
  void act(int rank);
  // Delivers the oldest message from `from`.
  void deliver(int from, int to);
  // Ends the oldest running batch on this rank.
  bool can_finish(int rank) const;
  void finish(int rank);
  void tick(int rank, Nanos now);
  void fail(int rank, const Error& error);
  // Takes the controller's effects; to be called after each group of events on a rank.
  void flush(int rank);
  // Appends the oldest Go or Filled that this rank owes to the ring.
  bool can_append(int rank) const;
  void append(int rank);
  // Ends the process: it does nothing more, and what is sent to it is lost.
  void die(int rank);
  // Ends the process when it next sends messages to more than `sent` ranks in one go: only the
  // first `sent` of them leave, and nothing else that it would have done then is done.
  void die_sending(int rank, size_t sent) { at(rank).dies_after_sending = sent; }

  // Since the last call: pairs (from, to) of new messages; ranks that owe the ring an entry; ranks
  // that were woken since something was appended; batches that every rank has started.
  std::vector<std::pair<int, int>> take_sent() { return std::exchange(sent_, {}); }
  std::vector<int> take_owing() { return gates_ ? gates_->take_owing() : std::vector<int>{}; }
  std::vector<int> take_woken() { return std::exchange(woken_, {}); }
  std::string gate_history() const { return gates_ ? gates_->history() : ""; }
  std::vector<uint64_t> take_runnable() { return std::exchange(runnable_, {}); }
  std::vector<std::string> take_trace() { return std::exchange(trace_, {}); }
  // Adds a line of the driver, or a heading, which is added only if something is noted below it.
  void note(const std::string& line);
  void head(const std::string& line) { heading_ = line; }
  bool tracing() const { return options_.trace; }

  // Counts everything but Pings, Pongs and stall reports: while it stands still, nothing happens.
  uint64_t progress() const { return progress_; }
  const std::vector<std::string>& violations() const { return violations_; }
  bool any_message() const { return !channels_.empty(); }
  // A batch that some rank has started has not ended on some rank that lives.
  bool any_batch_runs() const;

 private:
  struct Batch {
    core::StartBatch first;                                // as the first rank started it
    std::vector<std::vector<Contribution>> contributions;  // by entry
    std::vector<Outcome> results;  // by entry, once all ranks have started it
    int started = 0;
    bool lost = false;  // a rank died before it had finished here
  };

  Rank& at(int rank) { return ranks_.at(static_cast<size_t>(rank)); }
  void act_once(int rank, const Action& action, size_t index);
  void send(int from, const core::Outgoing& message);
  void count_words(int from, int to, const core::Item& item);
  void count_freezes(const std::vector<core::Item>& records);
  void start(int rank, const core::StartBatch& start);
  void gather(int rank, const core::GatheredEntry& gathered);
  void add_contribution(int rank, const core::StartBatch& start, size_t entry, Batch& batch);
  void compare(int rank, const core::StartBatch& start, const core::StartBatch& first);
  void settle(int rank, size_t action, Outcome outcome);
  void end(int rank, const Error& error);
  void ring();
  void violate(const std::string& text);

  const Options options_;
  std::vector<int> names_;
  std::unique_ptr<SimulatedGates> gates_;
  std::vector<Rank> ranks_;
  Channels channels_;
  std::deque<Batch> batches_;
  std::set<Contribution> used_;
  std::set<core::EntryId> ids_with_rows_;
  RowsOfAlltoall rows_;
  std::vector<std::pair<int, int>> sent_;
  std::vector<int> woken_;
  std::vector<uint64_t> runnable_;
  std::vector<std::string> trace_;
  std::string heading_;
  std::vector<std::string> violations_;
  uint64_t progress_ = 0;
};

}  // namespace horon::simulation
