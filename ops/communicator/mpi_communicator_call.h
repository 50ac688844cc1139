// Makes the MPI communicator of some ranks on a thread of its own.
//
// MPI only has a blocking call for it (MPI_Comm_create_group). If a member dies or stops there,
// that call never returns. On a thread of its own it holds up nobody, and the ranks can find out
// who is missing.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "horon/core/bootstrap/mpi_library.h"
#include "horon/ops/mpi/mpi_communicator.h"

namespace horon::ops {

class MpiCommunicatorCall {
 public:
  // `make` blocks and may throw. The library must outlive the communicator.
  MpiCommunicatorCall(core::MpiLibrary& library,
                      std::function<std::unique_ptr<MpiCommunicator>()> make);
  // If the call has not returned, it is left running and the library is abandoned. A communicator
  // that was not taken is never freed: that is collective, and other members may have none.
  ~MpiCommunicatorCall();
  MpiCommunicatorCall(const MpiCommunicatorCall&) = delete;
  MpiCommunicatorCall& operator=(const MpiCommunicatorCall&) = delete;

  // True once the call has returned.
  bool wait(std::chrono::nanoseconds timeout);
  // After wait(): why there is no communicator; empty if there is one.
  std::string failure() const;
  // Null unless the call has returned with a communicator that nobody has taken.
  std::unique_ptr<MpiCommunicator> take();

 private:
  struct Call;

  core::MpiLibrary& library_;
  const std::shared_ptr<Call> call_;
  std::thread thread_;
};

}  // namespace horon::ops
