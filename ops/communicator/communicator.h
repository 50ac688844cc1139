// What the collectives of one process set run on, seen from one rank: who the members are, which of
// them share a host, their shared memory and their MPI communicator. The world is one of them.
//
// Ops are made from a communicator (ops/builtin.h), in the same way for every set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/bootstrap/topology.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/choice/machine_constants.h"

namespace horon::ops {

class MpiCommunicator;

class Communicator {
 public:
  struct Parts {
    uint32_t id = 0;           // the same on all members; 0: of all ranks of the job
    std::vector<int> members;  // ranks of the job, ascending; this rank is one of them
    core::Topology topology;   // of the members: its ranks are indices into `members`
    // The members of this host. Never null, but perhaps not available().
    std::shared_ptr<core::LocalGroup> local_group;
    // Zeroed memory for the ops alone, 64-byte aligned, the same on all members of this host. Null
    // if the group is not available.
    std::byte* area = nullptr;
    // On each of their hosts the members share memory: then all of them have an area.
    bool all_share_memory = false;
    // On each of their hosts the members share memory, or there is only one.
    bool all_reach_their_hosts = false;
    // Null: no ops on MPI, or set_mpi() comes later.
    std::unique_ptr<MpiCommunicator> mpi;
    // By these its ops choose algorithms; the same on all ranks of the job.
    MachineConstants constants;
  };

  explicit Communicator(Parts parts);
  // Frees the MPI communicator, which is collective over the members unless MPI was abandoned, and
  // lets go of the shared memory.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  uint32_t id() const { return parts_.id; }
  const std::vector<int>& members() const { return parts_.members; }
  const core::Topology& topology() const { return parts_.topology; }
  core::LocalGroup& local_group() const { return *parts_.local_group; }
  const std::shared_ptr<core::LocalGroup>& shared_local_group() const { return parts_.local_group; }
  std::byte* area() const { return parts_.area; }
  // The same answers on all members.
  bool all_share_memory() const { return parts_.all_share_memory; }
  bool all_reach_their_hosts() const { return parts_.all_reach_their_hosts; }
  // An MPI_Comm* for code that must not include mpi.h; null if there is none.
  const void* mpi() const;
  void set_mpi(std::unique_ptr<MpiCommunicator> mpi);
  const MachineConstants& constants() const { return parts_.constants; }
  // Call it before ops are made.
  void set_constants(const MachineConstants& constants) { parts_.constants = constants; }

  // From these a hierarchical collective makes its sub-communicators, as ranks of the job: the
  // members of this host, and the lowest member of each host.
  std::vector<int> members_of_this_host() const { return as_ranks(parts_.topology.local_ranks); }
  std::vector<int> leaders() const { return as_ranks(parts_.topology.leaders()); }

 private:
  std::vector<int> as_ranks(const std::vector<int>& indices) const;

  Parts parts_;
};

}  // namespace horon::ops
