// A job's bootstrap over MPI.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <mpi.h>

#include "horon/core/base/config.h"
#include "horon/core/bootstrap/bootstrap.h"
#include "horon/core/bootstrap/mpi_library.h"

namespace horon::core {

// Of a rank that waits for others. It warns after `warn_s`, again after twice the time and so on,
// and gives up after `abort_s`. 0: never.
struct WaitLimits {
  double warn_s = 0;
  double abort_s = 0;
};

class MpiBootstrap final : public Bootstrap {
 public:
  // `communicator`: an MPI_Comm* of the caller's, duplicated; null: MPI_COMM_WORLD. Collective over
  // the communicator. Ranks are on one host if MPI says that they can share memory and their
  // `host_id` is the same. The library must outlive the bootstrap. Throws Error(InvalidArgument) at
  // once for MPI_COMM_NULL and an intercommunicator. A rank that has waited too long in allgather()
  // throws Error(Stall), and so do ranks that come later. That, or an error of MPI's in the wait,
  // abandons the library.
  explicit MpiBootstrap(MpiLibrary& library, const void* communicator = nullptr,
                        const std::string& host_id = "", WaitLimits limits = {});
  // Frees the communicators while the library is usable: all ranks must come here.
  ~MpiBootstrap() override;
  MpiBootstrap(const MpiBootstrap&) = delete;
  MpiBootstrap& operator=(const MpiBootstrap&) = delete;

  const Topology& topology() const override { return topology_; }
  std::vector<std::string> allgather(Among among, std::string_view mine) const override;

  const MpiLibrary& library() const { return library_; }
  // All ranks of the job: a parent to duplicate. Errors are returned, not fatal.
  MPI_Comm communicator() const { return communicator_; }

 private:
  void find_hosts(const std::string& host_id);
  std::vector<std::string> allgather_over(MPI_Comm communicator, std::string_view mine) const;
  void wait_for_others(MPI_Comm communicator) const;

  MpiLibrary& library_;
  const WaitLimits limits_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  MPI_Comm host_communicator_ = MPI_COMM_NULL;
  Topology topology_;
};

// Makes one where ranks of the communicator may be late or never come. The limits of this wait too,
// which ends as one in allgather(), are config.stall_warn_s and config.stall_abort_s.
std::unique_ptr<MpiBootstrap> meet_all_ranks(MpiLibrary& library, const void* communicator,
                                             const Config& config);

}  // namespace horon::core
