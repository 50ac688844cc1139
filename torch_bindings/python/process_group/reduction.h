// What c10d calls a reduction, in Horon's terms.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "horon/torch_bindings/collectives/pending_collective.h"

namespace horon::python::process_group {

// Throws Error(InvalidArgument) for one that Horon does not have.
ReduceOp reduce_op_of(const ::c10d::ReduceOp& op);

// Also the factor of PREMUL_SUM. Refuses as the collective does.
void set_reduction(torch_detail::PendingCollective& pending, const ::c10d::ReduceOp& op);

}  // namespace horon::python::process_group
