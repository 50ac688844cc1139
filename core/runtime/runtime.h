// The runtime of one rank: takes submissions, and steps the controller, the transport and the
// executor on the thread of whoever waits, or on a background thread while nobody waits.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/base/statistics.h"
#include "horon/core/bootstrap/topology.h"
#include "horon/core/execution/piece_sizes.h"
#include "horon/core/runtime/open_receive.h"
#include "horon/core/runtime/rank_devices.h"
#include "horon/core/runtime/seat_visitor.h"
#include "horon/core/runtime/set_resources.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {

class Timeline;
class Transport;

class Runtime {
 public:
  struct Parts {
    Config config;
    Topology topology;
    std::unique_ptr<Transport> transport;
    SetResources world;  // of all ranks
    // Makes what a process set of these ranks runs on; this rank is one of them. Called in the
    // loop, which stands still meanwhile, at nearly the same time on all members. Null: add_set()
    // is refused. An exception from it ends the job.
    std::function<SetResources(const std::vector<int>& ranks)> make_set;
    // Makes what the set of two ranks runs on, in which they send and receive (pair_sets.h). Needs
    // nothing of the other rank, which may make its half later. Called in the loop. Null: there are
    // no pairs.
    std::function<SetResources(const std::vector<int>& ranks)> make_pair;
    // Which devices of this rank the domains of make_pair(ranks) will reach. Any thread. Null: host
    // memory alone.
    std::function<RankDevices(const std::vector<int>& ranks)> devices_of_pair;
    std::shared_ptr<SeatVisitor> seat_visitor;  // may be null
    std::shared_ptr<Timeline> timeline;         // may be null
    // submit() steps the loop itself where it can. For ranks without a core to spare: there waking
    // the background thread takes the core from the program.
    bool step_in_submit = false;
    // The loop stands still until open(): nothing is sent or received.
    bool starts_closed = false;
  };

  // Starts the thread.
  explicit Runtime(Parts parts);
  // Calls shutdown() with the configured deadline if that has not happened.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  void open() noexcept;

  // Hands an entry to the loop and returns its handle. Any thread of the program. Throws Error:
  // InvalidArgument, NotInitialized (after shutdown), or the error that ended the job. What only
  // the loop finds out, such as DuplicateName, becomes the error of the handle.
  std::shared_ptr<HandleState> submit(Submission submission);

  // The same for a receive from any of several ranks. The submission lacks what the receive fills
  // in when it knows whose message it gets; its name is for texts until then.
  std::shared_ptr<HandleState> submit(std::shared_ptr<OpenReceive> receive, Submission submission);

  // submit(), and a wait until the handle has finished. This thread drives the loop, unless another
  // one does already.
  std::shared_ptr<HandleState> run(Submission submission);

  // The first half of run(). No thread is woken for the entry, so the caller must call drive()
  // next, whatever happens in between. Throws as submit().
  std::shared_ptr<HandleState> submit_quietly(Submission submission);
  // The second half without the wait: steps the loop until the handle has finished or the deadline
  // has passed. Unfinished entries of this thread then go on without it. Returns at once after
  // shutdown().
  void drive(const HandleState& handle, std::chrono::steady_clock::time_point deadline) noexcept;

  // Destroys what finished entries have left (Submission::keep_alive), as the end of each wait
  // does. For programs that submit and never wait. Do not hold a lock that a destructor may want.
  void release_finished();

  // For a call that is wrong on this rank alone: every rank that submits the same name fails with
  // this text instead of waiting for this rank. The caller throws its own error. Any thread; never
  // throws.
  void refuse(const std::string& name, const std::string& text, uint32_t set = 0) noexcept;

  // "This rank has no more data": until every member has said so, this rank takes part in the
  // others' reductions with neutral elements. The outcome tells who came last. Any thread. Throws
  // Error.
  std::shared_ptr<HandleState> join(uint32_t set = 0);

  // The local halves of making and removing a process set; the session makes sure that all ranks do
  // so together. `id` is the same on all members and never reused; `ranks` is ascending. Does
  // nothing if this rank is not among them. remove_set() waits until all members have called it and
  // all that they had submitted has ended. Any thread; both block. Throw Error.
  void add_set(uint32_t id, const std::vector<int>& ranks);
  void remove_set(uint32_t id);
  // As remove_set(), but returns at once: the set ends when all members have left or removed it.
  void leave_set(uint32_t id);

  // Ends the job with this error on all ranks, for a reason that the runtime does not see. Later
  // submissions of this thread fail. Does nothing after shutdown(), nor on a thread that is in the
  // loop or in line for it: there a signal handler has called exit(), and shutdown() ends the job.
  // Any thread; never throws.
  void fail(const Error& error) noexcept;

  // Says "no more from this rank", serves the others until all ranks have said so or the job has
  // ended, and joins the thread. If something that this rank has submitted, or that runs here, has
  // not ended at the deadline, the others are told, which ends the job there too. A time in which
  // this process stood still does not count. Never throws.
  // Idempotent. Returns what kept it from waiting for the others: the deadline, or exit() within
  // the loop. Returns "" otherwise, also if a failure has ended the job (see fatal_error()).
  // `farewell`: after an error has ended the job, how long this rank waits for the others to call
  // shutdown() too, counted from the call. A launcher ends all processes when one goes without
  // MPI_Finalize(), and the others may be saving their state. If a rank is dead, it does not wait.
  std::string shutdown(std::chrono::nanoseconds deadline,
                       std::chrono::nanoseconds farewell = std::chrono::nanoseconds(0));

  // A thread within the loop has called exit(): the job has not ended, and nothing that it uses may
  // be given back.
  bool left_from_within() const noexcept;

  // What is stalled as far as this rank has heard ("tensor "x": waiting for rank 1 since 12 s
  // ..."); empty if nothing is known. Any thread.
  std::string stall_report() const;

  // Over all process sets. Any thread.
  Statistics statistics() const;

  // The fatal error that ended the job, if one did.
  std::shared_ptr<const Error> fatal_error() const;

  // Throws Error(InvalidArgument) if this rank is not in this set, or has left it. Any thread.
  void require_member(uint32_t set) const;
  // Why the collectives of a set of this rank take no tensors in such memory
  // (SetResources::unavailable); empty if they do. Throws as require_member(). Any thread.
  std::string unavailable(uint32_t set, DeviceKind device) const;
  // SetResources::mixed of a set of this rank. Throws as require_member(). Any thread.
  bool is_mixed(uint32_t set, DeviceKind device) const;
  // The range of EntrySpec::piece_bytes that matters to allreduces like this one in a set of this
  // rank. Throws as require_member(), and Error(Config) if no op can run it. Any thread.
  PieceSizes piece_sizes(uint32_t set, const EntrySpec& like) const;

  const Config& config() const;
  const Topology& topology() const;
  // Null if the job has none. It may be switched off at the moment.
  Timeline* timeline() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horon::core
