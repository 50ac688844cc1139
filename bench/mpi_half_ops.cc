#include "horon/bench/mpi_half_ops.h"

#include <array>
#include <cstddef>

#include "horon/core/base/error.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::bench {
namespace {

// Uses Horon's own kernels, so that a comparison is about how the data travel.
template <DataType kDtype, ReduceOp kOp>
void reduce_into(void* in, void* inout, int* count, MPI_Datatype* /*datatype*/) {
  ops::Reduction reduction;
  reduction.dtype = kDtype;
  reduction.op = kOp;
  auto* const result = static_cast<std::byte*>(inout);
  const std::array<const std::byte*, 2> inputs = {result, static_cast<const std::byte*>(in)};
  ops::reduce_many(reduction, inputs, {&result, 1}, *count);
}

template <DataType kDtype, ReduceOp kOp>
MPI_Op op_of() {
  static const MPI_Op made = [] {
    MPI_Op op = MPI_OP_NULL;
    MPI_Op_create(reduce_into<kDtype, kOp>, /*commute=*/1, &op);
    return op;
  }();
  return made;
}

template <DataType kDtype>
MPI_Op op_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return op_of<kDtype, ReduceOp::Sum>();
    case ReduceOp::Min:
      return op_of<kDtype, ReduceOp::Min>();
    case ReduceOp::Max:
      return op_of<kDtype, ReduceOp::Max>();
    case ReduceOp::Product:
      return op_of<kDtype, ReduceOp::Product>();
    case ReduceOp::BitAnd:
    case ReduceOp::BitOr:
    case ReduceOp::BitXor:
    case ReduceOp::Adasum:
      break;  // no float has them, and Adasum is not timed
  }
  HORON_CHECK(false, "unknown reduction");
}

}  // namespace

MPI_Op mpi_half_op(DataType dtype, ReduceOp op) {
  return dtype == DataType::Float16 ? op_for<DataType::Float16>(op)
                                    : op_for<DataType::BFloat16>(op);
}

}  // namespace horon::bench
