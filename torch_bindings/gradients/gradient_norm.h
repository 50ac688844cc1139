// The L2 norm of gradients, with the same bits on all ranks.
//
// at::linalg_vector_norm() adds up in an order that depends on the number of threads and on the
// instruction set, so ranks of unlike machines would clip equal gradients by factors that differ in
// the last bits. Here the order depends on nothing but the tensor.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

// Of all elements, added up in float64. Floating dtypes, in host memory; of sparse tensors the
// coalesced values. NaN or infinite if an element is, and infinite if a square of a float64
// overflows. Large tensors are shared out to the threads of LibTorch.
double sum_of_squares(const at::Tensor& gradient);

// The L2 norm of all of these together, which are on one GPU and dense: a number there, float64,
// for which the host does not wait. The order of the tensors does not matter; the bits are the same
// on GPUs of one kind.
at::Tensor norm_on_device(const std::vector<at::Tensor>& gradients);

}  // namespace horon::torch_detail
