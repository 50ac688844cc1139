#include "horon/core/transport/mpi_transport.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/text.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/core/bootstrap/mpi_look.h"
#include "horon/core/bootstrap/mpi_requests_error.h"

namespace horon::core {

namespace {

constexpr int kTag = 0;
constexpr int kLastTag = 1;  // of a message that says that no more will come
// How long the end waits for the others, who have ended too: this one may have been stopped.
constexpr std::chrono::seconds kSettleMax{1};

}  // namespace

MpiTransport::MpiTransport(const MpiBootstrap& bootstrap, const WaitPolicy& policy,
                           size_t arrivals_max)
    : library_(bootstrap.library()),
      arrivals_max_(arrivals_max),
      policy_(policy),
      rank_(bootstrap.topology().rank),
      size_(bootstrap.topology().size),
      has_sent_to_(static_cast<size_t>(size_)) {
  check_mpi(MPI_Comm_dup(bootstrap.communicator(), &communicator_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiTransport::~MpiTransport() {
  if (settle()) {
    MPI_Comm_free(&communicator_);
    return;
  }
  // MPI may still read and write the buffers of unfinished requests, so they are never freed.
  keep_for_ever(std::make_shared<std::vector<SharedBytes>>(std::move(send_buffers_)));
  keep_for_ever(std::make_shared<std::deque<Arrival>>(std::move(arrivals_)));
}

// A last message goes to each rank that this one has ever sent to, by a synchronous send: that is
// over once the receiver has matched it, and so all messages before it. The barrier is over once
// this is so for all ranks. (T. Hoefler, C. Siebert, A. Lumsdaine: Scalable Communication Protocols
// for Dynamic Sparse Data Exchange, PPoPP 2010.)
bool MpiTransport::settle() noexcept {
  if (abandoned_ || library_.abandoned() || !library_.usable()) return false;
  try {
    for (int peer = 0; peer < size_; ++peer) {
      if (has_sent_to_[static_cast<size_t>(peer)])
        isend(&MPI_Issend, kLastTag, peer, SharedBytes());
    }
    MPI_Request barrier = MPI_REQUEST_NULL;
    bool in_barrier = false;
    int all_are_here = 0;
    const auto limit = std::chrono::steady_clock::now() + kSettleMax;
    for (;;) {
      finish_sends();
      take_arrivals();
      std::erase_if(arrivals_, [](const Arrival& arrival) { return arrival.complete; });
      const MpiLook look;
      if (!in_barrier && send_requests_.empty()) {
        check_mpi(MPI_Ibarrier(communicator_, &barrier), "MPI_Ibarrier");
        in_barrier = true;
      }
      if (in_barrier && all_are_here == 0) {
        check_mpi(MPI_Test(&barrier, &all_are_here, MPI_STATUS_IGNORE), "MPI_Test");
      }
      if (all_are_here != 0 && !matched_ && arrivals_.empty()) return true;
      if (std::chrono::steady_clock::now() >= limit) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  } catch (...) {  // MPI keeps the communicator, as after a failure of the job
    return false;
  }
}

void MpiTransport::send(int to, SharedBytes message) {
  HORON_CHECK(to >= 0 && to < size_ && to != rank_, "a message goes to another rank");
  require_sendable(message);
  if (!library_.may_call()) return;  // the others see that this rank is silent
  isend(&MPI_Isend, kTag, to, std::move(message));
  finish_sends();  // after this one, which must go whatever has become of those before
}

void MpiTransport::isend(Isend* mpi_isend, int tag, int to, SharedBytes message) {
  // Memory is taken first: once MPI_Isend has begun, MPI reads the bytes, which must stay in place.
  finished_.resize(send_requests_.size() + 1);
  statuses_.resize(send_requests_.size() + 1);
  send_buffers_.push_back(std::move(message));
  try {
    send_requests_.push_back(MPI_REQUEST_NULL);
  } catch (...) {
    send_buffers_.pop_back();
    throw;
  }
  const SharedBytes& bytes = send_buffers_.back();
  check_mpi(mpi_isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, tag,
                      communicator_, &send_requests_.back()),
            "MPI_Isend");
  has_sent_to_[static_cast<size_t>(to)] = true;
}

void MpiTransport::finish_sends() {
  if (send_requests_.empty()) return;
  const MpiLook look;
  int count = 0;
  finished_.resize(send_requests_.size());
  statuses_.resize(send_requests_.size());
  const int code = MPI_Testsome(static_cast<int>(send_requests_.size()), send_requests_.data(),
                                &count, finished_.data(), without_errors(statuses_));
  const auto finished = static_cast<size_t>(std::max(count, 0));  // it may be MPI_UNDEFINED
  check_mpi(error_of_requests(code, {statuses_.data(), finished}), "MPI_Testsome");
  if (count == 0) return;
  size_t kept = 0;
  for (size_t i = 0; i < send_requests_.size(); ++i) {
    if (send_requests_[i] == MPI_REQUEST_NULL) continue;
    if (kept != i) {
      send_requests_[kept] = send_requests_[i];
      send_buffers_[kept] = std::move(send_buffers_[i]);
    }
    ++kept;
  }
  send_requests_.resize(kept);
  send_buffers_.resize(kept);
}

std::optional<MpiTransport::Matched> MpiTransport::match_next() {
  int found = 0;
  Matched next;
  MPI_Status status;
  check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &found, &next.message, &status),
            "MPI_Improbe");
  if (found == 0) return std::nullopt;
  next.from = status.MPI_SOURCE;
  next.is_last = status.MPI_TAG == kLastTag;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &next.bytes), "MPI_Get_count");
  if (next.bytes < 0 || static_cast<size_t>(next.bytes) > kMessageBytesMax) {
    throw Error(ErrorCode::Internal,
                concat("rank ", next.from, " sent a control message of ", next.bytes,
                       " bytes through MPI, more than Horon ever sends"));
  }
  return next;
}

// Starts to receive what MPI has matched, and sees which arrivals are complete. A message for which
// there was no memory stays matched, and has its turn in the next call.
void MpiTransport::take_arrivals() {
  const MpiLook look;
  while (arrivals_.size() < arrivals_max_) {
    if (!matched_) matched_ = match_next();
    if (!matched_) break;
    Arrival arrival;
    arrival.from = matched_->from;
    arrival.is_last = matched_->is_last;
    arrival.bytes.resize(static_cast<size_t>(matched_->bytes));
    Arrival& next = arrivals_.emplace_back(std::move(arrival));
    Matched matched = *std::exchange(matched_, std::nullopt);
    check_mpi(
        MPI_Imrecv(next.bytes.data(), matched.bytes, MPI_BYTE, &matched.message, &next.request),
        "MPI_Imrecv");
  }
  for (Arrival& arrival : arrivals_) {
    if (arrival.complete) continue;
    int done = 0;
    check_mpi(MPI_Test(&arrival.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    arrival.complete = done != 0;
  }
  // It has been matched, which is all that its sender waits for, and would take a place for ever.
  std::erase_if(arrivals_,
                [](const Arrival& arrival) { return arrival.complete && arrival.is_last; });
}

std::optional<Transport::Message> MpiTransport::receive() {
  if (size_ == 1 || !library_.may_call()) return std::nullopt;
  finish_sends();
  take_arrivals();
  // A short message may be complete before a long one that the same rank sent earlier: it waits for
  // its turn.
  for (auto arrival = arrivals_.begin(); arrival != arrivals_.end(); ++arrival) {
    if (!arrival->complete) continue;
    const auto same = [&](const Arrival& earlier) { return earlier.from == arrival->from; };
    if (std::any_of(arrivals_.begin(), arrival, same)) continue;
    Message message = {arrival->from, std::move(arrival->bytes)};
    arrivals_.erase(arrival);
    return message;
  }
  return std::nullopt;
}

bool MpiTransport::flushed() {
  if (!library_.may_call()) return true;
  finish_sends();
  return send_requests_.empty();
}

void MpiTransport::wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) {
  doorbell_.wait(timeout, policy);
}

}  // namespace horon::core
