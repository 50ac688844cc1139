// The loop of one rank: drains submissions, steps the process sets and the transport.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/bootstrap/topology.h"
#include "horon/core/runtime/abort_sender.h"
#include "horon/core/runtime/busy_runners.h"
#include "horon/core/runtime/look_round.h"
#include "horon/core/runtime/open_receives.h"
#include "horon/core/runtime/pacer.h"
#include "horon/core/runtime/set_runner.h"
#include "horon/core/runtime/shared_statistics.h"
#include "horon/core/runtime/submission_queue.h"
#include "horon/core/transport/transport.h"

namespace horon::core {

// What the program's threads and the loop share.
struct RuntimeDoor {
  explicit RuntimeDoor(std::function<void()> wake) : queue(std::move(wake)) {}

  SubmissionQueue queue;
  std::mutex mutex;                    // guards the next two, which the loop writes
  std::shared_ptr<const Error> fatal;  // what ended the job
  std::string stall_report;
  SharedStatistics statistics;
  std::atomic<bool> leaving{false};  // shutdown() has begun, and waits until `deadline_ns`
  std::atomic<int64_t> deadline_ns{0};
  std::atomic<int64_t> limit_ns{0};  // from the start of a wait to its deadline
  // What a call gets after shutdown().
  const std::shared_ptr<const Error> shut_down =
      std::make_shared<const Error>(ErrorCode::NotInitialized, "horon::shutdown() has been called");
};

// Belongs to the thread that holds the seat (loop_seat.h), and after close() to the thread that
// shuts down. Any thread may call doorbell() and must_poll().
class RuntimeLoop {
 public:
  struct Parts {
    const Config* config = nullptr;
    const Topology* topology = nullptr;
    std::shared_ptr<Timeline> timeline;  // may be null
    Transport* transport = nullptr;
    SetResources world;
    std::function<SetResources(const std::vector<int>& ranks)> make_set;
    std::function<SetResources(const std::vector<int>& ranks)> make_pair;
    Reaper* reaper = nullptr;  // outlives the loop
  };
  RuntimeLoop(Parts parts, RuntimeDoor& door);

  // Does what can be done now. False if that was nothing. An exception within it ends the job on
  // all ranks, with its text. The holder calls doorbell().take() before each turn.
  bool turn() noexcept;
  // All ranks have shut down, the job has failed or the deadline has passed: no more turns.
  bool ended() const { return ended_; }
  // After a turn that did nothing: how long to sleep, if nothing rings.
  std::chrono::nanoseconds pause();
  // After pause(): the loop polls, so the sleep must not be rounded up.
  bool polls() const { return polls_; }
  // Something under way must be polled: its end does not ring the doorbell. If the transport fails
  // here, the job ends as in turn(), and then a thread must close the loop.
  bool must_be_stepped() noexcept;
  // Some peer sends over MPI, and its messages do not ring the doorbell.
  bool must_poll() const { return transport_->must_poll(); }
  void wait(std::chrono::nanoseconds timeout) { transport_->wait(timeout, wait_policy()); }
  // After a sleep: looks for peers that have died.
  void rested() noexcept;
  // After the end, once: sends the last messages and finishes what still waits.
  void close() noexcept;
  // After close() of a failed job: tells the other ranks that this one goes, and returns when all
  // of them have said so too or are dead, or at the limit.
  void wait_for_farewells(std::chrono::steady_clock::time_point limit) noexcept;
  // The thread that holds the seat ends the process and will not come back: tells the other ranks.
  void end_from_within(const Error& error) noexcept;
  // What shutdown() reports; empty if all went well. After close().
  const std::string& shutdown_report() const { return shutdown_report_; }

  Doorbell& doorbell() noexcept { return transport_->doorbell(); }
  // After pause(). A wait begins with the last news and has many pauses. Spinning and looking is
  // worth it only at its beginning: a long wait hardly ends within the next moment, and where
  // pauses are shorter than a look, the thread would never sleep.
  WaitPolicy wait_policy() const noexcept;

 private:
  // A peer whose process has ended, as far as the platform can tell.
  struct Death {
    std::string who;
    Nanos seen;
  };
  static Error error_of(const Death& death);

  // The last messages (Bye, Abort) go out, for a second at most: a peer may take nothing any more.
  void flush_messages();
  bool try_turn();
  // Stirs the sets whose turn it is (look_round.h), also those that rest.
  void look_around(Nanos now, bool in_haste);
  // Lets all busy sets decide, and sends their messages. True if anything happened.
  bool decide();
  bool take_calls();
  void take_call(Call& call);
  static Error removed(uint32_t set);
  void take(Submission&& submission);
  void take(AddSetCall& add);
  void take(RemoveSetCall& remove);
  void forget_removed_sets();
  bool was_removed(uint32_t set) const;
  // Null if there is none. The runner of a pair is made when it is first asked for.
  SetRunner* find_runner(uint32_t set);
  // The same for a call of this rank: tells the other rank of a new pair at once. After shutdown()
  // it makes no runner.
  SetRunner* runner_for_call(uint32_t set);
  // Leaves the world once the other rank of each pair is known to have it.
  void leave_world();
  void add_runner(uint32_t id, const std::vector<int>& ranks, SetResources resources);
  bool take_messages();
  // All members make a set before one of them uses it, so the message can only be an Abort: the job
  // may fail meanwhile, and a member that has made the set sends it there. Throws if it is anything
  // else.
  void take_from_unknown_set(uint32_t set, std::span<const std::byte> bytes);
  // The error with which a set has failed, if one has; the world's first.
  std::optional<Error> error_of_any_set() const;
  // Starts receives from any rank that have found their message; tells of those that wait long.
  bool settle_open_receives(Nanos now);
  // Makes the report of all sets anew.
  void note_stalls();
  // Into the timeline, once a second: the statistics that have changed.
  void record_statistics(Nanos now);
  void record_statistics();
  bool all_over() const;
  // From now on submissions are refused. Returns the error that ends the job: this one, an earlier
  // one, or "out of memory" if there is none to keep this one.
  Error set_fatal(const Error& error) noexcept;
  // The same, and all ranks of each set are told in the next turn.
  void fail_all_sets(const Error& error);
  // Ends the job: tells the other ranks. All that waits or comes later gets the first error that
  // was given here.
  void end_job(const Error& error) noexcept;
  // What the exception that is being handled means for the job.
  Error failure_of_turn() const noexcept;
  // All that waits gets this error.
  void end_all(const Error& error) noexcept;
  void finish_calls(const Error& error) noexcept;
  // `now`: when this turn began. If that is past the deadline, the turn has taken the ShutdownCall.
  bool past_deadline(Nanos now) const;
  bool anybody_waits() const;
  // True if messages have come that may say why a peer is gone: look again after a turn.
  bool look_for_the_dead();
  void judge_the_dead(SetRunner& runner, Nanos now);
  // shutdown() has waited long enough.
  void end_at_deadline();
  void act_at_deadline();
  void note_farewells();
  void wait_on();
  // Between the turn before this one and this one. The limit of shutdown() does not count a time in
  // which this process stood still.
  void forgive_pause(Nanos before, Nanos now);

  using Clock = std::chrono::steady_clock;

  const Config& config_;
  const Topology& topology_;
  const std::shared_ptr<Timeline> timeline_;
  Transport* const transport_;
  const std::function<SetResources(const std::vector<int>&)> make_set_;
  const std::function<SetResources(const std::vector<int>&)> make_pair_;
  Reaper* const reaper_;
  const std::shared_ptr<const Error> out_of_memory_;  // made while there is memory
  AbortSender abort_;
  RuntimeDoor& door_;
  BusyRunners busy_;
  std::map<uint32_t, std::unique_ptr<SetRunner>> runners_;
  OpenReceives open_{config_, topology_.rank, reaper_,
                     [this](uint32_t set) { return runner_for_call(set); }};
  size_t coordinated_ = 0;  // sets that this rank coordinates
  LookRound round_;
  uint32_t looked_at_ = kWorldSet;  // the latest set that had its turn in look_around()
  std::map<uint32_t, std::vector<std::shared_ptr<HandleState>>> removals_;  // set -> who waits
  uint32_t newest_set_ = kWorldSet;  // of those that all ranks have made
  std::set<uint32_t> removed_;       // sets made by members alone that are gone
  std::set<int> gone_;               // ranks that have said farewell
  std::set<uint32_t> greeted_;       // pairs whose other rank has not answered yet
  Pacer pacer_;
  std::vector<Call> calls_;
  std::vector<Outgoing> outbox_;
  Nanos next_look_for_the_dead_ = 0;  // in turns
  Nanos next_look_after_a_sleep_ = 0;
  Nanos next_record_ = 0;  // when the statistics go into the timeline
  uint64_t recorded_file_ = 0;
  Statistics recorded_;
  bool fatal_now_ = false;  // an error ends the job in this turn
  bool shut_down_ = false;  // this rank has called shutdown()
  bool left_world_ = false;
  std::map<int, Death> dead_;  // by rank
  bool ended_ = false;
  bool polls_ = false;
  std::string shutdown_report_;
  bool told_of_waiting_ = false;
  bool waits_without_limit_ = false;
};

}  // namespace horon::core
