#include "horon/ops/mpi/mpi_messages.h"

#include <algorithm>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/core/bootstrap/mpi_look.h"
#include "horon/core/bootstrap/mpi_requests_error.h"

namespace horon::ops {

MpiMessages::MpiMessages(MPI_Comm communicator, Tags tags)
    : communicator_(communicator),
      first_tag_(tags == Tags::All ? kFirstTag : kFirstTagBeside),
      tags_(tags == Tags::All ? kTags : kFirstBlockTag) {
  core::check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN),
                  "MPI_Comm_set_errhandler");
}

void MpiMessages::check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  error_ = code;
  failed_call_ = call;
  check_kept();
}

void MpiMessages::check_kept() const { core::check_mpi(error_, failed_call_); }

Messages::Id MpiMessages::new_id() {
  if (free_.empty()) {
    free_.push_back(static_cast<Id>(requests_.size()));
    requests_.push_back(MPI_REQUEST_NULL);
    ended_.push_back(0);
    statuses_.emplace_back();
  }
  const Id id = free_.back();
  free_.pop_back();
  return id;
}

Messages::Id MpiMessages::send(int to, int tag, const std::byte* data, int64_t bytes) {
  return send_by(&MPI_Isend, "MPI_Isend", to, tag, data, bytes);
}

Messages::Id MpiMessages::send_and_await(int to, int tag, const std::byte* data, int64_t bytes) {
  return send_by(&MPI_Issend, "MPI_Issend", to, tag, data, bytes);
}

Messages::Id MpiMessages::send_by(Send call, const char* name, int to, int tag,
                                  const std::byte* data, int64_t bytes) {
  HORON_CHECK(bytes <= kBytesMax && tag < tags_, "a message has a limit");
  check_kept();
  const Id id = new_id();
  check(call(data, static_cast<int>(bytes), MPI_BYTE, to, first_tag_ + tag, communicator_,
             &requests_[id]),
        name);
  return id;
}

Messages::Id MpiMessages::receive(int from, int tag, std::byte* data, int64_t bytes) {
  HORON_CHECK(bytes <= kBytesMax && tag < tags_, "a message has a limit");
  check_kept();
  const Id id = new_id();
  check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, first_tag_ + tag, communicator_,
                  &requests_[id]),
        "MPI_Irecv");
  return id;
}

// One call of MPI for all of them: each call looks at every connection.
void MpiMessages::progress() {
  check_kept();
  const core::MpiLook look;
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                ended_.data(), core::without_errors(statuses_));
  const auto ended = static_cast<size_t>(std::max(count, 0));  // it may be MPI_UNDEFINED
  check(core::error_of_requests(code, {statuses_.data(), ended}), "MPI_Testsome");
}

// The request of a message that has failed is null, too.
bool MpiMessages::take_if_over(Id id) {
  check_kept();
  if (requests_[id] != MPI_REQUEST_NULL) return false;
  free_.push_back(id);
  // A look goes over all ids that there are: where the last is free they begin anew.
  if (free_.size() == requests_.size()) clear();
  return true;
}

void MpiMessages::clear() {
  requests_.clear();
  free_.clear();
  ended_.clear();
  statuses_.clear();
}

}  // namespace horon::ops
