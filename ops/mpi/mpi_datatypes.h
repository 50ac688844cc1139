// Horon's element types and reductions in MPI's terms.
#pragma once

#include <mpi.h>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::ops {

// A type of the same size; 16-bit floats, which MPI lacks, travel as uint16_t and can't be reduced.
MPI_Datatype mpi_datatype(DataType dtype);

// An MPI_Op that is freed at the end, unless MPI has ended before.
class MpiUserOp {
 public:
  // Commutative.
  explicit MpiUserOp(MPI_User_function* function);
  ~MpiUserOp();
  MpiUserOp(const MpiUserOp&) = delete;
  MpiUserOp& operator=(const MpiUserOp&) = delete;
  MPI_Op get() const { return op_; }

 private:
  MPI_Op op_ = MPI_OP_NULL;
};

// The reductions of the types that MPI can reduce. Min and Max of floats are our own: MPI's drop a
// NaN or keep it depending on the order, and choose either zero, so ranks could end with different
// bits.
class MpiReductions {
 public:
  MpiReductions();
  // Average is a sum here. `dtype` is no 16-bit float.
  MPI_Op get(DataType dtype, ReduceOp op) const;

 private:
  MpiUserOp float_min_;
  MpiUserOp float_max_;
  MpiUserOp double_min_;
  MpiUserOp double_max_;
};

}  // namespace horon::ops
