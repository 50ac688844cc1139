// Whether a tensor of the library's is also held by the program.
#pragma once

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

// Whether anybody but the caller, who holds it once, refers to this tensor. Not: to its memory, as
// a view of it does. True may be wrong while another thread lets go of it. Any thread.
bool is_held_by_others(const at::Tensor& tensor);

// In a Python process references of Python count differently (tensors keep their Python object, and
// it keeps them), which the module of Python knows. Before the first gradient.
using HeldByOthers = bool (*)(const at::Tensor& tensor);
void install_held_by_others(HeldByOthers function);

}  // namespace horon::torch_detail
