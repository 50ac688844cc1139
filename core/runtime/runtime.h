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
    // loop, which stands still meanwhile, at nearly the same time on all members.
    // May be null: then add_set() is refused. What it throws ends the job.
    std::function<SetResources(const std::vector<int>& ranks)> make_set;
    // Makes what the set of two ranks runs on, which send and receive there (pair_sets.h): without
    // the other rank, which may do so later. Called in the loop. May be null: then there are no
    // pairs.
    std::function<SetResources(const std::vector<int>& ranks)> make_pair;
    // The memory of this rank that the domains of make_pair(ranks) will reach. Any thread. Null:
    // host memory alone.
    std::function<RankDevices(const std::vector<int>& ranks)> devices_of_pair;
    std::shared_ptr<SeatVisitor> seat_visitor;  // may be null
    std::shared_ptr<Timeline> timeline;         // may be null
    // submit() steps the loop itself where it can. For ranks without a core to spare: there a
    // background thread that is woken takes the core from the program.
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

  // Hands an entry over; makes and returns its handle. Any thread of the program. Throws Error:
  // InvalidArgument, NotInitialized (after shutdown), or the error that ended the job. What the
  // loop finds out, such as DuplicateName, is the error of the handle.
  std::shared_ptr<HandleState> submit(Submission submission);

  // The same for a message from any of some ranks. The submission lacks what the receive puts in
  // when it knows whose message it is; its name is for people.
  std::shared_ptr<HandleState> submit(std::shared_ptr<OpenReceive> receive, Submission submission);

  // submit() and a wait until it has finished, on this thread if no other one drives the loop
  // already.
  std::shared_ptr<HandleState> run(Submission submission);

  // The first half of run(): nobody is woken for the entry, so drive() comes next, whatever happens
  // in between. Throws as submit().
  std::shared_ptr<HandleState> submit_quietly(Submission submission);
  // The other half, but for the wait: steps the loop until the handle has finished or the deadline
  // has passed. What then is left of all that this thread has submitted goes on without it. Also
  // after shutdown(), when it returns at once.
  void drive(const HandleState& handle, std::chrono::steady_clock::time_point deadline) noexcept;

  // Destroys what finished entries have left (Submission::keep_alive), as each wait that ends does.
  // For programs that submit and never wait; not under a lock that a destructor may want.
  void release_finished();

  // For a call that is wrong on this rank alone: the same name fails with this text on every rank
  // that submits it, instead of waiting for this one. The caller throws its own error. Any thread;
  // never throws.
  void refuse(const std::string& name, const std::string& text, uint32_t set = 0) noexcept;

  // "This rank has no more data": until every member has said so, this rank takes part in the
  // others' reductions with neutral elements. The outcome tells who came last. Any thread. Throws
  // Error.
  std::shared_ptr<HandleState> join(uint32_t set = 0);

  // Local halves of making and removing a process set; session code sees to it that all ranks do
  // so together. `id` is the same on all members and never used again; `ranks` ascending; does
  // nothing if this rank is not among them. remove_set() waits until all members have called it
  // and what they had submitted has ended. Any thread; block. Throw Error.
  void add_set(uint32_t id, const std::vector<int>& ranks);
  void remove_set(uint32_t id);
  // The same, but waits for nothing: the set goes when all members have left or removed it.
  void leave_set(uint32_t id);

  // The job can't go on, for a reason that the runtime does not see: it ends with this error on all
  // ranks, as when a collective fails. What this thread submits from now on fails. Without effect
  // after shutdown(), and on a thread that is in the loop or in line for it: exit() was called in a
  // signal handler there, and shutdown() ends the job. Any thread; never throws.
  void fail(const Error& error) noexcept;

  // Says "no more from this rank", serves the others until all ranks have said so or the job has
  // ended, and joins the thread. If something that this rank has submitted, or runs here, has not
  // ended at the deadline, the others are told so, which ends the job there too. Never throws.
  // Returns what kept it from waiting for the others: the deadline, or exit() within the loop.
  // Empty otherwise, also if a failure has ended the job: fatal_error() has that. Idempotent.
  // `farewell`: after an error that has ended the job, how long this rank waits until the others
  // have called shutdown() too, counted from the call: a launcher ends all processes when one of
  // them goes without MPI_Finalize(), and they may be saving what they have. It waits for nobody if
  // a rank is dead.
  std::string shutdown(std::chrono::nanoseconds deadline,
                       std::chrono::nanoseconds farewell = std::chrono::nanoseconds(0));

  // exit() was called by a thread within the loop: the job has not ended, and nothing that it uses
  // may be given back.
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
  // SetResources::mixed, of a set of this rank. Throws as require_member(). Any thread.
  bool is_mixed(uint32_t set, DeviceKind device) const;
  // Which EntrySpec::piece_bytes make a difference to allreduces like this one in a set of this
  // rank. Throws as require_member(), and Error(Config) if no op can run it. Any thread.
  PieceSizes piece_sizes(uint32_t set, const EntrySpec& like) const;

  const Config& config() const;
  const Topology& topology() const;
  // Null if the job has none; it may record nothing now.
  Timeline* timeline() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horon::core
