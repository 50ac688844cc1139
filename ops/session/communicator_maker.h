// Makes the communicator of a process set on a thread of its own.
//
// MPI makes one for some of the ranks by a blocking call only (MPI_Comm_create_group). If a member
// dies or stops there, that call never returns. On a thread of its own it holds up nobody: the
// runtime thread goes on, and the ranks find out who is missing.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "horon/core/bootstrap/mpi_bootstrap.h"
#include "horon/ops/mpi/mpi_communicator.h"

namespace horon::ops {

class CommunicatorMaker {
 public:
  // `ranks`: all members, ascending. MPI must allow threads at once. Library and bootstrap must
  // outlive the communicator.
  CommunicatorMaker(core::MpiLibrary& library, const core::MpiBootstrap& bootstrap,
                    std::vector<int> ranks);
  // If the call has not returned it is left as it is, and so is MPI: the library is abandoned.
  ~CommunicatorMaker();
  CommunicatorMaker(const CommunicatorMaker&) = delete;
  CommunicatorMaker& operator=(const CommunicatorMaker&) = delete;

  // True once the call has returned.
  bool wait(std::chrono::nanoseconds timeout);
  // After wait(): why there is no communicator; empty if there is one.
  std::string failure() const;
  std::unique_ptr<MpiCommunicator> take();

 private:
  struct Call;

  core::MpiLibrary& library_;
  const std::shared_ptr<Call> call_;
  std::thread thread_;
};

}  // namespace horon::ops
