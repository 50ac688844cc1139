// Do all ranks still hold the same? For tests, and once in a while during training.
#pragma once

#include <type_traits>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/tensors/named_tensors.h"

namespace horon {
namespace torch_detail {
void check_module_replicas(const torch::nn::Module& module, const ProcessSet& process_set);
}

// Returns if every rank of the set holds the same tensors: same names, dtypes, shapes and bytes (so
// 0 and -0 differ, a NaN equals itself). Their order and their strides don't matter. Else throws
// Error(Mismatch), with one text on every rank: the first tensor that differs from the lowest
// rank's and on which ranks, and names that only some ranks have.
//
//   horon::check_replicas_equal(*model);   // parameters and buffers
//
// Bytes are compared by 64-bit hashes; 16 bytes travel from each rank if all are equal. Blocks;
// every rank of the set makes the same calls. Throws Error(InvalidArgument) on every rank if one
// gives a tensor that collectives don't take (see collectives.h), or two under one name. Any
// thread.
void check_replicas_equal(const NamedTensors& tensors, const ProcessSet& process_set = {});
// Of a module its parameters, and its buffers, which the error calls so: the running statistics of
// a BatchNorm (not of a SyncBatchNorm) differ by design. For parameters alone:
// check_replicas_equal(model->named_parameters()).
template <class Module>
requires std::is_base_of_v<torch::nn::Module, Module>
void check_replicas_equal(const Module& module, const ProcessSet& process_set = {}) {
  torch_detail::check_module_replicas(module, process_set);
}

}  // namespace horon
