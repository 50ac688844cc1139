// Makes the communicators of a job: the world's, and those of some of its ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/bootstrap/mpi_bootstrap.h"
#include "horon/ops/communicator/communicator.h"

namespace horon::ops {

class CommunicatorMaker {
 public:
  struct Options {
    // How much shared memory the ops of a communicator with this topology need on each host.
    std::function<size_t(const core::Topology&)> area_bytes;
    bool shared_memory = true;
    core::LocalGroup::ProcessCopies process_copies = core::LocalGroup::ProcessCopies::IfAllowed;
    // When to warn of a call of MPI's that has not returned, and when to give it up. 0: never.
    double warn_after_s = 10;
    double abort_after_s = 0;
    // A rank that reports nothing for so long counts as dead. 0: never. In connect() no rank
    // reports.
    double dead_after_s = 10;
  };
  // Collective over all ranks. Library and bootstrap must outlive the maker and what it makes.
  CommunicatorMaker(core::MpiLibrary& library, const core::MpiBootstrap& bootstrap,
                    Options options);

  // For all ranks; collective over them, while nothing else runs yet. The group's area begins with
  // `reserved_bytes` (a multiple of 64) that are not for the ops. If a rank throws, all do.
  std::shared_ptr<Communicator> make_world(size_t reserved_bytes) const;

  // For some ranks: a process set, or a part of one (Communicator::leaders()). Collective over the
  // ranks that talk to each other over `talk`: all of the job, or the members alone. Each rank
  // names the members, ascending, of its own communicator; a rank that is in none names no members,
  // and gets null. One call may make several if they have no rank in common. `what` begins each
  // message; `id` is the same on all ranks, and a new one for each call.
  //
  // If a rank fails, all ranks that talk throw the same Error, which names that rank; the job can
  // go on. If another rank still waits for it in MPI then, all ranks that talk abandon the library
  // (gave_mpi_up()). All ranks of the job must do so: if only some talk, or some may not know of it
  // (gave_mpi_up_together()), the caller ends the job. From then on no more communicators can be
  // made: each call throws such an Error at once.
  //
  // An exception of the wait check ends this rank's part alone, also while it waits for MPI. Then
  // MPI is given up here, and the others do not know.
  //
  // If threads may not call MPI at the same time, the thread that owns MPI calls connect() next;
  // until then there is no MPI communicator.
  struct Part {
    std::string what;
    uint32_t id = 0;
    std::vector<int> members;
  };
  std::shared_ptr<Communicator> make(const Communicator& world, const core::Bootstrap& talk,
                                     const Part& part) const;
  // Makes the MPI communicator, if there is none. Collective over the members. MPI has no
  // non-blocking form of it, so this blocks until it is done, a member on this host has died, or
  // abort_after_s or dead_after_s are over. In the last two cases it throws Error, the library is
  // abandoned, and MPI may not be called any more (MpiLibrary::may_call()).
  void connect(Communicator& communicator, uint32_t id) const;
  // On every rank, threads may call MPI at the same time.
  bool threads_at_once() const { return threads_at_once_; }
  // Whether the library has been abandoned on this rank.
  bool gave_mpi_up() const { return library_.abandoned(); }
  // Whether all ranks that talk to each other have abandoned it in one call, and each knows that
  // the others have.
  bool gave_mpi_up_together() const { return gave_up_together_; }

 private:
  class Progress;

  std::unique_ptr<MpiCommunicator> make_mpi(const core::Bootstrap& talk, const Part& part) const;
  void give_mpi_up(const core::Bootstrap& talk) const;

  core::MpiLibrary& library_;
  const core::MpiBootstrap& bootstrap_;
  const Options options_;
  // On every rank, threads may call MPI at the same time. The programs of one job may have asked
  // for different thread levels, and the calls that make a communicator depend on it.
  bool threads_at_once_ = false;
  mutable std::atomic<bool> gave_up_together_{false};
};

}  // namespace horon::ops
