#include "horon/bench/mpi_peer.h"

#include <array>
#include <limits>

#include <mpi.h>

#include "horon/core/base/error.h"

namespace horon::bench {
namespace {

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
      return MPI_UINT8_T;
    case DataType::Float16:
    case DataType::BFloat16:
      break;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return MPI_SUM;
    case ReduceOp::Min:
      return MPI_MIN;
    case ReduceOp::Max:
      return MPI_MAX;
    case ReduceOp::Product:
      return MPI_PROD;
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

MpiPeer::MpiPeer() : communicator_(std::make_unique<Communicator>()) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE) {
    throw Error(ErrorCode::Config,
                "this MPI does not allow calls from several threads (MPI_THREAD_MULTIPLE), which a "
                "comparison with it needs");
  }
  MPI_Comm_dup(MPI_COMM_WORLD, &communicator_->handle);
}

MpiPeer::~MpiPeer() { MPI_Comm_free(&communicator_->handle); }

int MpiPeer::size() const {
  int ranks = 0;
  MPI_Comm_size(communicator_->handle, &ranks);
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
  constexpr int bytes = 256;
  std::array<char, bytes> text{};
  mine.copy(text.data(), text.size() - 1);
  std::vector<char> all(static_cast<size_t>(size()) * bytes);
  MPI_Allgather(text.data(), bytes, MPI_CHAR, all.data(), bytes, MPI_CHAR, communicator_->handle);
  std::vector<std::string> result;
  for (size_t at = 0; at < all.size(); at += bytes) result.emplace_back(all.data() + at);
  return result;
}

std::string MpiPeer::refusal(DataType dtype, ReduceOp op) {
  if (mpi_type(dtype) == MPI_DATATYPE_NULL) {
    return "MPI has no type " + std::string(to_string(dtype));
  }
  if (dtype == DataType::Bool && op != ReduceOp::Max && op != ReduceOp::Min) {
    return "MPI adds and multiplies bytes, not truth values";
  }
  return "";
}

void MpiPeer::allreduce(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                        ReduceOp op) {
  MPI_Allreduce(input == output ? MPI_IN_PLACE : input, output, int_count(count), mpi_type(dtype),
                mpi_op(op), communicator_->handle);
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
  MPI_Reduce_scatter_block(input, output, int_count(count), mpi_type(dtype), mpi_op(op),
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
