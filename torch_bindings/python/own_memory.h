// Tensors of Python that stand for others.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace horon::python {

// Why nothing can be read from the tensor or written to it: it is of a subclass without memory of
// its own, a DTensor say. Empty: it has memory, or is no such tensor.
std::string fault_of_memory(const at::Tensor& tensor);

}  // namespace horon::python
