// The MPI datatypes and MPI_Ops for Horon's element types and reductions.
#pragma once

#include <memory>

#include <mpi.h>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::ops {

// A type of the same size. MPI has no 16-bit floats: they travel as uint16_t and can't be reduced.
MPI_Datatype mpi_datatype(DataType dtype);

// Owner of an MPI_Op. It is not freed if MPI has been finalized before.
class MpiUserOp {
 public:
  // The function must be commutative.
  explicit MpiUserOp(MPI_User_function* function);
  ~MpiUserOp();
  MpiUserOp(const MpiUserOp&) = delete;
  MpiUserOp& operator=(const MpiUserOp&) = delete;
  MPI_Op get() const { return op_; }

 private:
  MPI_Op op_ = MPI_OP_NULL;
};

// The MPI_Op of each reduction. Some are our own. MPI's Min and Max of floats keep or drop a NaN,
// and choose -0 or +0, depending on the order, so ranks could end with different bits. Open
// MPI 4.1's sums of 8 and 16-bit integers saturate on machines with AVX and wrap on others, and
// MPICH 4.0 compares unsigned ones of 8 bits as if they had a sign.
class MpiReductions {
 public:
  MpiReductions();
  // For Average this is the sum. `dtype` must not be a 16-bit float.
  MPI_Op get(DataType dtype, ReduceOp op) const;

 private:
  template <DataType kDtype, ReduceOp kOp>
  void add();

  std::unique_ptr<const MpiUserOp> own_[kDataTypeCount][kReduceOpCount];  // null: use MPI's
};

}  // namespace horon::ops
