// One process set on one rank: its controller, its executor and the submissions that are under way.
//
// Each set has an order of its own, so none waits for another. Belongs to whoever holds the seat.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/execution/executor.h"
#include "horon/core/negotiation/controller.h"
#include "horon/core/runtime/busy_runners.h"
#include "horon/core/runtime/live_submissions.h"
#include "horon/core/runtime/set_resources.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {

class OpenReceives;
class Reaper;
class SharedStatistics;
class Timeline;

class SetRunner {
 public:
  struct Parts {
    uint32_t id = 0;
    int me = 0;                // this rank's index among the members
    std::vector<int> ranks;    // of all members
    std::vector<int> host_of;  // by member, see Topology
    const Config* config = nullptr;
    SetResources resources;
    std::shared_ptr<Timeline> timeline;      // may be null
    Reaper* reaper = nullptr;                // outlives the runner
    SharedStatistics* statistics = nullptr;  // outlives the runner
    BusyRunners* busy = nullptr;             // outlives the runner
    OpenReceives* open = nullptr;            // hears what seek() has found; outlives the runner
    // Takes the messages that have come, for this set and for others. Returns the error with which
    // any of the sets has failed.
    std::function<std::optional<Error>()> take_messages;
    // Called before a handle hears of an error that ends the job. Returns the error that ends it:
    // this one, or an earlier one.
    std::function<Error(const Error&)> on_fatal;
  };
  explicit SetRunner(Parts parts);
  ~SetRunner();
  SetRunner(const SetRunner&) = delete;
  SetRunner& operator=(const SetRunner&) = delete;

  // Makes the next turn step this runner. Every event below calls it.
  void stir();

  // Events, at the time of the turn (BusyRunners).
  // If this throws, the submission is either untouched or already the runner's.
  void take(Submission&& submission);
  void refuse(const Refusal& refusal);
  // The same holds for the handle here.
  void join(std::shared_ptr<HandleState>&& handle);
  void shut_down();
  void leave();
  void greet();
  // See Controller.
  void seek(const std::string& name);
  void expect_found(int change);
  void receive(int from_rank, std::span<const std::byte> bytes);
  void fail(const Error& error);

  // Decides what follows from the events. True if anything happened. Messages go to `outbox`,
  // addressed to ranks of the world; send them before work().
  bool decide(std::vector<Outgoing>& outbox);
  // Moves the collectives on. True if anything happened.
  bool work();
  // The job is over: ends everything that is under way, also after another call has thrown. First
  // every set finishes its handles, then every set abandons its collectives: when an op aborts, the
  // events in its queue happen, and queues of other sets may be waiting for them.
  void finish_all(const Error& error) noexcept;
  void abandon_all() noexcept;
  // After abandon_all() of every set: see Executor::finish_abort().
  void finish_abort(std::chrono::steady_clock::time_point limit) noexcept {
    parts_.resources.executor->finish_abort(limit);
  }

  // Call it after a turn. True if only the next event or the clock can make anything happen here;
  // then the runner no longer counts as one of the busy ones.
  bool try_drop() noexcept;
  // decide() has changed stall_text().
  bool has_new_stall_text() const { return has_new_stall_text_; }

  Executor::Pace pace() const { return pace_; }
  bool at_rest() const { return controller_.at_rest(); }
  bool has_own_work() const { return controller_.has_own_work(); }
  bool waits() const { return controller_.waits(); }
  bool has_member(int rank) const;
  bool is_coordinator() const { return controller_.is_coordinator(); }
  const std::optional<Error>& fatal() const { return controller_.fatal(); }
  const std::string& stall_text() const { return stall_text_; }
  // Every member has shut down, and nothing runs on any of them.
  bool over() const { return bye_; }

 private:
  bool apply(Effects& effects, std::vector<Outgoing>& outbox);
  // Makes the numbers of this set readable for all threads.
  void publish_statistics();
  void publish(const Statistics& now);
  void finish(const GatheredEntry& gathered);
  BatchWork work_of(StartBatch& start);
  Error error_of(const FinishedBatch& batch) const;  // which has one
  bool settle_batches();
  void settle(EnqueuedBatch& batch);
  void settle(FinishedBatch& batch);
  // Finishes the handle and gives the memory back. If the handle finished when its batch was
  // enqueued, only tells it of the error. `memory_in_use`: a failed collective may still write to
  // its tensors, by way of MPI, of a peer or of a device, so they are kept for ever.
  void complete(Ticket ticket, Outcome outcome, bool memory_in_use = false) noexcept;

  using Clock = std::chrono::steady_clock;

  Parts parts_;
  Controller controller_;
  Effects effects_;             // of the latest decision
  Statistics counted_;          // what parts_.statistics has of this set
  uint64_t bytes_started_ = 0;  // of this rank's tensors
  uint64_t bytes_ended_ = 0;
  Executor::Pace pace_ = Executor::Pace::Idle;
  bool listed_ = false;   // among the busy ones
  bool waited_ = false;   // was not at rest when it left them
  bool stirred_ = false;  // since the latest decision
  bool moved_ = false;    // something happened in the latest decide() or work()
  bool bye_ = false;
  std::string stall_text_;  // as of the latest decision
  bool has_new_stall_text_ = false;
  std::vector<GatheredEntry>
      gathered_;  // of the latest decision: reduced once its messages are sent
  std::vector<EnqueuedBatch> enqueued_;
  std::vector<FinishedBatch> finished_;
  std::vector<std::vector<EntryWork>> spare_entries_;  // of batches that have finished
  LiveSubmissions live_;
};

}  // namespace horon::core
