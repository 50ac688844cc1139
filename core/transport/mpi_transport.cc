#include "horon/core/transport/mpi_transport.h"

#include <algorithm>
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
// A call takes no more messages from MPI than this: a flood must not hold up the caller, nor fill
// its memory.
constexpr size_t kArrivalsMax = 64;

}  // namespace

MpiTransport::MpiTransport(const MpiBootstrap& bootstrap, const WaitPolicy& policy)
    : library_(bootstrap.library()),
      policy_(policy),
      rank_(bootstrap.topology().rank),
      size_(bootstrap.topology().size) {
  check_mpi(MPI_Comm_dup(bootstrap.communicator(), &communicator_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiTransport::~MpiTransport() {
  bool unfinished = abandoned_ || !library_.usable();
  if (!unfinished) {
    int done = 1;
    const auto count = static_cast<int>(send_requests_.size());
    MPI_Testall(count, send_requests_.data(), &done, MPI_STATUSES_IGNORE);
    unfinished = done == 0 || matched_ || !arrivals_.empty();
  }
  if (!unfinished) {
    MPI_Comm_free(&communicator_);
    return;
  }
  // MPI may still read and write the buffers of unfinished requests, so they are never freed.
  keep_for_ever(std::make_shared<std::vector<SharedBytes>>(std::move(send_buffers_)));
  keep_for_ever(std::make_shared<std::deque<Arrival>>(std::move(arrivals_)));
}

void MpiTransport::send(int to, SharedBytes message) {
  HORON_CHECK(to >= 0 && to < size_ && to != rank_, "a message goes to another rank");
  require_sendable(message);
  if (!library_.may_call()) return;  // the others see that this rank is silent
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
  check_mpi(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, kTag,
                      communicator_, &send_requests_.back()),
            "MPI_Isend");
  finish_sends();  // after this one, which must go whatever has become of those before
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
  check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kTag, communicator_, &found, &next.message, &status),
            "MPI_Improbe");
  if (found == 0) return std::nullopt;
  next.from = status.MPI_SOURCE;
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
  while (arrivals_.size() < kArrivalsMax) {
    if (!matched_) matched_ = match_next();
    if (!matched_) break;
    Arrival arrival;
    arrival.from = matched_->from;
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
