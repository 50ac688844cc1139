// Whether a tensor of the library's is also held by the program.
#pragma once

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

// Whether anybody but the caller, who holds it once, refers to this tensor itself: views of its
// memory do not count. May be true by mistake while another thread lets go of it. Any thread.
bool is_held_by_others(const at::Tensor& tensor);

// In a Python process references count differently (a tensor and its Python object keep each
// other), so Horon's Python module installs a function of its own. Before the first gradient.
using HeldByOthers = bool (*)(const at::Tensor& tensor);
void install_held_by_others(HeldByOthers function);

}  // namespace horon::torch_detail
