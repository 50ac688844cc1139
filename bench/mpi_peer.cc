#include "horon/bench/mpi_peer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include <mpi.h>

#include "horon/bench/mpi_half_ops.h"
#include "horon/core/base/error.h"
#include "horon/core/base/narrow_type.h"

namespace horon::bench {
namespace {

void sleep_through_barrier(MPI_Comm communicator, std::chrono::microseconds between_looks) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(communicator, &request);
  for (int done = 0; done == 0;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) std::this_thread::sleep_for(between_looks);
  }
}

MPI_Datatype mpi_type(DataType dtype) {
  switch (dtype) {
    case DataType::Float32:
      return MPI_FLOAT;
    case DataType::Float64:
      return MPI_DOUBLE;
    case DataType::Int8:
      return MPI_INT8_T;
    case DataType::UInt8:
      return MPI_UINT8_T;
    case DataType::Int16:
      return MPI_INT16_T;
    case DataType::Int32:
      return MPI_INT32_T;
    case DataType::Int64:
      return MPI_INT64_T;
    case DataType::Bool:
      return MPI_C_BOOL;
    case DataType::Float16:
    case DataType::BFloat16:
      return MPI_UINT16_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(DataType dtype, ReduceOp op) {
  if (core::is_16_bit_float(dtype)) return mpi_half_op(dtype, op);
  const bool boolean = dtype == DataType::Bool;
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return boolean ? MPI_LOR : MPI_SUM;
    case ReduceOp::Min:
      return boolean ? MPI_LAND : MPI_MIN;
    case ReduceOp::Max:
      return boolean ? MPI_LOR : MPI_MAX;
    case ReduceOp::Product:
      return boolean ? MPI_LAND : MPI_PROD;
    case ReduceOp::BitAnd:
      return boolean ? MPI_LAND : MPI_BAND;
    case ReduceOp::BitOr:
      return boolean ? MPI_LOR : MPI_BOR;
    case ReduceOp::BitXor:
      return boolean ? MPI_LXOR : MPI_BXOR;
    case ReduceOp::Adasum:
      break;  // not timed
  }
  return MPI_OP_NULL;
}

int int_count(int64_t count) {
  HORON_CHECK(count <= std::numeric_limits<int>::max(), "MPI counts in 32 bits");
  return static_cast<int>(count);
}

// Collectives that only move data may use any type of the right size.
int int_bytes(int64_t count, DataType dtype) {
  return int_count(count * static_cast<int64_t>(size_of(dtype)));
}

}  // namespace

struct MpiPeer::Communicator {
  MPI_Comm handle = MPI_COMM_NULL;
};

MpiPeer::MpiPeer(const ProcessSet& set) : communicator_(std::make_unique<Communicator>()) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE) {
    throw Error(ErrorCode::Config,
                "this MPI does not allow calls from several threads (MPI_THREAD_MULTIPLE), which "
                "this program needs");
  }
  MPI_Comm_split(MPI_COMM_WORLD, set.includes_me() ? 0 : MPI_UNDEFINED, set.rank(),
                 &communicator_->handle);
}

MpiPeer::MpiPeer(std::unique_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)) {}

MpiPeer::~MpiPeer() {
  if (communicator_->handle != MPI_COMM_NULL) MPI_Comm_free(&communicator_->handle);
}

std::unique_ptr<MpiPeer> MpiPeer::duplicate() const {
  auto communicator = std::make_unique<Communicator>();
  MPI_Comm_dup(communicator_->handle, &communicator->handle);
  return std::unique_ptr<MpiPeer>(new MpiPeer(std::move(communicator)));
}

int MpiPeer::size() const {
  int ranks = 0;
  if (communicator_->handle != MPI_COMM_NULL) MPI_Comm_size(communicator_->handle, &ranks);
  return ranks;
}

void MpiPeer::barrier() { MPI_Barrier(communicator_->handle); }

std::vector<double> MpiPeer::max(std::vector<double> mine) {
  MPI_Allreduce(MPI_IN_PLACE, mine.data(), int_count(static_cast<int64_t>(mine.size())), MPI_DOUBLE,
                MPI_MAX, communicator_->handle);
  return mine;
}

int64_t MpiPeer::sum(int64_t mine) {
  MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_INT64_T, MPI_SUM, communicator_->handle);
  return mine;
}

std::vector<double> MpiPeer::gather(double mine) {
  std::vector<double> all(static_cast<size_t>(size()));
  MPI_Allgather(&mine, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, communicator_->handle);
  return all;
}

std::vector<std::string> MpiPeer::gather_text(const std::string& mine) {
  const auto own = static_cast<double>(mine.size());
  const std::vector<double> lengths = gather(own);
  const auto longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::string padded = mine;
  padded.resize(longest);
  std::vector<char> all(lengths.size() * longest);
  const int bytes = int_count(static_cast<int64_t>(longest));
  MPI_Allgather(padded.data(), bytes, MPI_CHAR, all.data(), bytes, MPI_CHAR, communicator_->handle);
  std::vector<std::string> result;
  for (size_t rank = 0; rank < lengths.size(); ++rank) {
    result.emplace_back(all.data() + rank * longest, static_cast<size_t>(lengths[rank]));
  }
  return result;
}

double MpiPeer::ping_s() {
  constexpr int kTrips = 200;
  int rank = 0;
  MPI_Comm_rank(communicator_->handle, &rank);
  barrier();
  const auto begin = std::chrono::steady_clock::now();
  char byte = 0;
  for (int turn = 0; turn < 2 * kTrips && size() > 1; ++turn) {
    const int from = turn % 2;
    if (rank == from) MPI_Send(&byte, 1, MPI_CHAR, 1 - from, 0, communicator_->handle);
    if (rank == 1 - from) {
      MPI_Recv(&byte, 1, MPI_CHAR, from, 0, communicator_->handle, MPI_STATUS_IGNORE);
    }
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  std::vector<double> seconds = gather(passed.count());
  return size() > 1 ? seconds.front() / (2 * kTrips) : 0;
}

void MpiPeer::rest_until_all_are_here() {
  sleep_through_barrier(communicator_->handle, std::chrono::microseconds(50));
}

void MpiPeer::meet_all_ranks() {
  sleep_through_barrier(MPI_COMM_WORLD, std::chrono::milliseconds(2));
}

void MpiPeer::allreduce(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                        ReduceOp op) {
  MPI_Allreduce(input == output ? MPI_IN_PLACE : input, output, int_count(count), mpi_type(dtype),
                mpi_op(dtype, op), communicator_->handle);
}

void MpiPeer::broadcast(std::byte* data, int64_t count, DataType dtype, int root) {
  MPI_Bcast(data, int_bytes(count, dtype), MPI_BYTE, root, communicator_->handle);
}

void MpiPeer::allgather(const std::byte* input, std::byte* output, int64_t count, DataType dtype) {
  const int bytes = int_bytes(count, dtype);
  MPI_Allgather(input, bytes, MPI_BYTE, output, bytes, MPI_BYTE, communicator_->handle);
}

void MpiPeer::reducescatter(const std::byte* input, std::byte* output, int64_t count,
                            DataType dtype, ReduceOp op) {
  if (with_counts_) {
    const std::vector<int> counts(static_cast<size_t>(size()), int_count(count));
    MPI_Reduce_scatter(input, output, counts.data(), mpi_type(dtype), mpi_op(dtype, op),
                       communicator_->handle);
    return;
  }
  MPI_Reduce_scatter_block(input, output, int_count(count), mpi_type(dtype), mpi_op(dtype, op),
                           communicator_->handle);
}

void MpiPeer::alltoall(const std::byte* input, std::byte* output, int64_t count, DataType dtype) {
  const int bytes = int_bytes(count, dtype);
  MPI_Alltoall(input, bytes, MPI_BYTE, output, bytes, MPI_BYTE, communicator_->handle);
}

void MpiPeer::gather(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                     int root) {
  const int bytes = int_bytes(count, dtype);
  MPI_Gather(input, bytes, MPI_BYTE, output, bytes, MPI_BYTE, root, communicator_->handle);
}

void MpiPeer::scatter(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                      int root) {
  const int bytes = int_bytes(count, dtype);
  MPI_Scatter(input, bytes, MPI_BYTE, output, bytes, MPI_BYTE, root, communicator_->handle);
}

std::string MpiPeer::library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all(text.data(), static_cast<size_t>(length));
  // "Open MPI v4.1.4, package: ..., ident: ..." and so on.
  return all.substr(0, all.find(','));
}

}  // namespace horon::bench
