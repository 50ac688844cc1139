// Reductions of 16-bit floats for MPI, which has neither such a type nor its sums.
#pragma once

#include <mpi.h>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::bench {

// An op on MPI_UINT16_T that takes the two bytes for a float of type `dtype`, Float16 or BFloat16.
// It adds in float32 and rounds each sum. For Average it is the sum. It lives as long as the
// process.
MPI_Op mpi_half_op(DataType dtype, ReduceOp op);

}  // namespace horon::bench
