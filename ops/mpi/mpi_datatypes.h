// Horon's element types and reductions in MPI's terms.
#pragma once

#include <memory>

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

// The reductions of the types that MPI can reduce. Some are our own. MPI's Min and Max of floats
// drop a NaN or keep it depending on the order, and choose either zero, so ranks could end with
// different bits. Open MPI 4.1's sums of 8 and 16-bit integers saturate on machines with AVX and
// wrap elsewhere.
class MpiReductions {
 public:
  MpiReductions();
  // Average is a sum here. `dtype` is no 16-bit float.
  MPI_Op get(DataType dtype, ReduceOp op) const;

 private:
  template <DataType kDtype, ReduceOp kOp>
  void add();

  std::unique_ptr<const MpiUserOp> own_[kDataTypeCount][kReduceOpCount];  // null: MPI's is used
};

}  // namespace horon::ops
