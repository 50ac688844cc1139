#include "horon/ops/mpi/mpi_datatypes.h"

#include <array>
#include <cstddef>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::ops {
namespace {

template <DataType kDtype, ReduceOp kOp>
void reduce_into(void* in, void* inout, int* count, MPI_Datatype* /*datatype*/) {
  Reduction reduction;
  reduction.dtype = kDtype;
  reduction.op = kOp;
  std::byte* result = static_cast<std::byte*>(inout);
  const std::array<const std::byte*, 2> inputs = {result, static_cast<const std::byte*>(in)};
  reduce_many(reduction, inputs, {&result, 1}, *count);
}

}  // namespace

MPI_Datatype mpi_datatype(DataType dtype) {
  switch (dtype) {
    case DataType::Float32:
      return MPI_FLOAT;
    case DataType::Float64:
      return MPI_DOUBLE;
    case DataType::Float16:
    case DataType::BFloat16:
      return MPI_UINT16_T;
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
      return MPI_UNSIGNED_CHAR;
  }
  HORON_CHECK(false, "unknown element type");
}

MpiUserOp::MpiUserOp(MPI_User_function* function) {
  core::check_mpi(MPI_Op_create(function, /*commute=*/1, &op_), "MPI_Op_create");
}

MpiUserOp::~MpiUserOp() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Op_free(&op_);
}

template <DataType kDtype, ReduceOp kOp>
void MpiReductions::add() {
  own_[static_cast<size_t>(kDtype)][static_cast<size_t>(kOp)] =
      std::make_unique<const MpiUserOp>(reduce_into<kDtype, kOp>);
}

MpiReductions::MpiReductions() {
  add<DataType::Float32, ReduceOp::Min>();
  add<DataType::Float32, ReduceOp::Max>();
  add<DataType::Float64, ReduceOp::Min>();
  add<DataType::Float64, ReduceOp::Max>();
  add<DataType::Int8, ReduceOp::Sum>();
  add<DataType::Int8, ReduceOp::Product>();
  add<DataType::UInt8, ReduceOp::Sum>();
  add<DataType::UInt8, ReduceOp::Product>();
  add<DataType::UInt8, ReduceOp::Min>();
  add<DataType::UInt8, ReduceOp::Max>();
  add<DataType::Int16, ReduceOp::Sum>();
  add<DataType::Int16, ReduceOp::Product>();
}

MPI_Op MpiReductions::get(DataType dtype, ReduceOp op) const {
  if (op == ReduceOp::Average) op = ReduceOp::Sum;
  const auto& own = own_[static_cast<size_t>(dtype)][static_cast<size_t>(op)];
  if (own != nullptr) return own->get();
  const bool is_bool = dtype == DataType::Bool;
  switch (op) {
    case ReduceOp::Sum:
      return is_bool ? MPI_BOR : MPI_SUM;
    case ReduceOp::Product:
      return is_bool ? MPI_BAND : MPI_PROD;
    case ReduceOp::Min:
      return is_bool ? MPI_BAND : MPI_MIN;
    case ReduceOp::Max:
      return is_bool ? MPI_BOR : MPI_MAX;
    case ReduceOp::BitAnd:
      return MPI_BAND;
    case ReduceOp::BitOr:
      return MPI_BOR;
    case ReduceOp::BitXor:
      return MPI_BXOR;
    case ReduceOp::Average:
    case ReduceOp::Adasum:
      break;
  }
  HORON_CHECK(false, "unknown reduction");
}

}  // namespace horon::ops
