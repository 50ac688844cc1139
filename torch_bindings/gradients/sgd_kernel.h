// One step of SGD over the elements of one tensor, in one pass over memory.
//
// LibTorch's optimizer makes several passes. Its at::_fused_sgd_() makes one, but rounds the last
// few elements of a tensor otherwise (seen with momentum and AVX2 or AVX-512), and leaves 16-bit
// parameters as they are. The kernels here round as the optimizer does. Whether LibTorch multiplies
// and adds in one rounding depends on the machine, so there are two, and fused_step.cc finds out
// which of them gives the optimizer's bits.
#pragma once

#include <cstdint>

namespace horon::torch_detail {

struct SgdTerms {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  double gradient_factor = 1;  // gradients are multiplied by it, and written back, if it is not 1
};

// `buffer`: the momentum; not read, but written, if `first`; unused, and may be null, if there is
// no momentum. The three do not overlap.
template <class T>
using SgdLoop = void (*)(T* parameter, T* gradient, T* buffer, int64_t count, const SgdTerms& terms,
                         bool first);

struct SgdKernel {
  SgdLoop<float> floats;
  SgdLoop<double> doubles;
};

// a * b + c with two roundings. Any machine.
SgdKernel sgd_kernel_plain();
// With one. Only where has_fma_instruction().
SgdKernel sgd_kernel_fma();

}  // namespace horon::torch_detail
