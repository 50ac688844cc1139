// An allreduce of a sparse tensor, as one collective of a group.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

// Adds this rank's entries to a grouped allgather. Indices and values travel as bytes, since the
// tensors of a group have one dtype. Refuses as the collective does.
void add_sparse(torch_detail::PendingCollective& pending, const at::Tensor& tensor,
                const ::c10d::ReduceOp& op);
// When it has succeeded: what the entries of all ranks add up to, coalesced, as `like`.
at::Tensor sparse_sum(torch_detail::PendingCollective& pending, const at::Tensor& like,
                      const ::c10d::ReduceOp& op);

}  // namespace horon::python::process_group
