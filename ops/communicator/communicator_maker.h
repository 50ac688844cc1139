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
    // How much of a communicator's shared memory its ops need on each host; of the communicator's
    // topology.
    std::function<size_t(const core::Topology&)> area_bytes;
    bool shared_memory = true;
    core::LocalGroup::ProcessCopies process_copies = core::LocalGroup::ProcessCopies::IfAllowed;
    // A call of MPI's that has not returned: when to warn, and when to give it up. 0: never.
    double warn_after_s = 10;
    double abort_after_s = 0;
    // A rank that says nothing for so long is taken for dead. 0: never. connect() says nothing.
    double dead_after_s = 10;
  };
  // Collective over all ranks. Library and bootstrap must outlive the maker and what it makes.
  CommunicatorMaker(core::MpiLibrary& library, const core::MpiBootstrap& bootstrap,
                    Options options);

  // Of all ranks; collective over them, while nothing else runs yet. The group's area begins with
  // `reserved_bytes` (a multiple of 64) that are not for the ops. If a rank throws, all do.
  std::shared_ptr<Communicator> make_world(size_t reserved_bytes) const;

  // Of some ranks: a process set, or a part of one (Communicator::leaders()). Collective over the
  // ranks that talk to each other over `talk`: all of the job, or the members alone. Each rank
  // names the members, ascending, of the communicator that it is in; a rank that is in none names
  // none, and gets null. Several may be made by one call if they have no rank in common. `what`
  // begins each message; `id` is the same on all ranks, and another one for each call.
  //
  // If a rank can't do it, all ranks that talk throw the same Error, with that rank; the job can go
  // on. Where another rank still waits for it in MPI then, the library is abandoned on all that
  // talk (gave_mpi_up()). All ranks of the job must do so: if only some talk, or some may not know
  // of it (gave_mpi_up_together()), the caller ends the job. From then on there are no more
  // communicators: each call throws such an Error at once.
  //
  // What a wait check throws ends this rank's part alone, also while it waits for MPI: then that is
  // given up here, and the others do not know.
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
  // Does nothing if there is an MPI communicator. Collective over the members. MPI has no form of
  // it that does not block, so this blocks: until it is done, a member on this host has died, or
  // abort_after_s or dead_after_s are over. Then it throws Error, the library is abandoned, and MPI
  // may not be called any more (MpiLibrary::may_call()).
  void connect(Communicator& communicator, uint32_t id) const;
  // Whether the library has been abandoned on this rank.
  bool gave_mpi_up() const { return library_.abandoned(); }
  // Whether all ranks that talk to each other have abandoned it in one call, and know of each other
  // that they have.
  bool gave_mpi_up_together() const { return gave_up_together_; }

 private:
  class Progress;

  std::unique_ptr<MpiCommunicator> make_mpi(const core::Bootstrap& talk, const Part& part) const;
  void give_mpi_up(const core::Bootstrap& talk) const;

  core::MpiLibrary& library_;
  const core::MpiBootstrap& bootstrap_;
  const Options options_;
  // Threads of all ranks may call MPI at the same time. Programs of one job may have asked for
  // unlike thread levels, and the calls that make a communicator depend on it.
  bool threads_at_once_ = false;
  mutable std::atomic<bool> gave_up_together_{false};
};

}  // namespace horon::ops
