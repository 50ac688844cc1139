// MPI for the life of one init() .. shutdown(): who is in the job, and the few collective calls of
// the start.
#pragma once

#include <string>
#include <vector>

#include <mpi.h>

#include "horon/core/bootstrap/topology.h"
#include "horon/core/host/local_group.h"

namespace horon::core {

// Made and ended by the same thread, which must be the one that may finalise MPI. The calls here
// block until all ranks make them, so they belong to the start only.
class MpiSession {
 public:
  // `communicator`: an MPI_Comm* of the caller's, duplicated; null: MPI_COMM_WORLD. Initialises MPI
  // for calls from several threads if nobody has. Collective over the communicator. Throws
  // Error(Config) if MPI has ended already or was initialised without threads, naming the cure.
  explicit MpiSession(const void* communicator = nullptr);
  // Frees the communicators and, if the session began MPI, ends it: all ranks must come here. After
  // abandon() it does neither.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  const Topology& topology() const { return topology_; }
  // For the session's own use and as a parent to duplicate; errors are returned, not fatal.
  MPI_Comm communicator() const { return communicator_; }
  MPI_Comm host_communicator() const { return host_communicator_; }
  bool owns_mpi() const { return owns_mpi_; }
  // "multiple" or "serialized"
  std::string thread_level() const;
  // "Open MPI v4.1.4, ..."; works at any time.
  static std::string library_version();

  // `action` is called when whoever owns MPI begins MPI_Finalize, while MPI still works, so that a
  // program that finalises MPI first does not pull it away below a running session. Set once in a
  // process, while MPI runs.
  static void at_finalize(void (*action)());

  // Among the ranks of this host. Valid as long as the session.
  LocalGroup::Exchange host_exchange() const;
  // Blocks of equal size, in order of rank.
  std::vector<std::byte> gather(std::span<const std::byte> mine) const;
  std::vector<std::string> gather_text(const std::string& mine) const;

  // Compares this text (the version, the knobs; lines) with rank 0's. If some rank's differs, every
  // rank throws the same Error(Config): "version differs between ranks: rank 0 has '0.1', rank 3
  // has '0.2'", with the first line that is different and the lowest rank that has a difference.
  void require_same(const std::string& what, const std::string& text) const;

  // The job is broken: from now on nothing may wait for other ranks, so MPI is left as it is.
  void abandon() noexcept { abandoned_ = true; }
  bool abandoned() const noexcept { return abandoned_; }

 private:
  void start_mpi();
  void find_topology();
  void broadcast_text(std::string& text, int root) const;

  MPI_Comm communicator_ = MPI_COMM_NULL;
  MPI_Comm host_communicator_ = MPI_COMM_NULL;
  Topology topology_;
  int thread_level_ = MPI_THREAD_SINGLE;
  bool owns_mpi_ = false;
  bool abandoned_ = false;
};

}  // namespace horon::core
