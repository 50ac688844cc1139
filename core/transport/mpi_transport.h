// Control messages over MPI, to any rank.
//
// Sends are MPI_Isend; arrivals are found by MPI_Improbe and taken by MPI_Imrecv. Only messages
// that have come are ever received, so at shutdown there is no receive to cancel.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include <mpi.h>

#include "horon/core/bootstrap/mpi_bootstrap.h"
#include "horon/core/host/doorbell.h"
#include "horon/core/transport/transport.h"

namespace horon::core {

// Uses a communicator of its own. All ranks make it together; the bootstrap must outlive it. No
// call blocks.
class MpiTransport final : public Transport {
 public:
  // receive() takes no more than `arrivals_max` messages from MPI ahead of its caller: a flood must
  // neither hold that up nor fill its memory.
  MpiTransport(const MpiBootstrap& bootstrap, const WaitPolicy& policy, size_t arrivals_max = 64);
  // Waits, for at most a second, until all ranks end theirs and nothing is under way between them.
  // Whatever has not been received is lost.
  ~MpiTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(int to, SharedBytes message) override;
  std::optional<Message> receive() override;
  // True once MPI needs no more of this rank for the sends; they may still be on the network.
  bool flushed() override;
  bool must_poll() const override { return size_ > 1; }
  // Sleeps for ring() only; messages do not wake it.
  void wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) override;
  Doorbell& doorbell() noexcept override { return doorbell_; }
  WaitPolicy wait_policy() const noexcept override { return policy_; }
  // The end waits for nobody, and keeps the communicator for ever: if it were freed, a late message
  // would go to a later communicator, to which MPI gives the same number.
  void abandon() noexcept override { abandoned_ = true; }

 private:
  struct Arrival {
    int from = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    Bytes bytes;
    bool complete = false;
    bool is_last = false;  // its rank is in its destructor
  };

  struct Matched {
    int from = 0;
    int bytes = 0;
    bool is_last = false;
    MPI_Message message = MPI_MESSAGE_NULL;
  };

  using Isend = decltype(MPI_Isend);

  // Receives and drops what the others have sent. False: something may still be under way.
  bool settle() noexcept;
  void isend(Isend* mpi_isend, int tag, int to, SharedBytes message);
  void finish_sends();
  std::optional<Matched> match_next();
  void take_arrivals();

  const MpiLibrary& library_;
  const size_t arrivals_max_;
  const WaitPolicy policy_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  bool abandoned_ = false;
  int rank_ = 0;
  int size_ = 1;
  std::vector<bool> has_sent_to_;  // [rank]
  std::vector<MPI_Request> send_requests_;
  // [request]. Several sends may read one payload at a time, since MPI 2.2.
  std::vector<SharedBytes> send_buffers_;
  std::vector<int> finished_;  // for MPI_Testsome, as statuses_
  std::vector<MPI_Status> statuses_;
  std::optional<Matched> matched_;  // matched, but not yet among the arrivals
  std::deque<Arrival> arrivals_;    // in the order in which MPI matched them
  Doorbell doorbell_;
};

}  // namespace horon::core
