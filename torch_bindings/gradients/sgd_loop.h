// The loop of both kernels of sgd_kernel.h.
//
// Everything is in an unnamed namespace, and no inline function from outside is called. Otherwise
// the linker could keep a copy that was compiled for a newer instruction set, and use it in the
// whole program.
#pragma once

#include <cstdint>

#include "horon/torch_bindings/gradients/sgd_kernel.h"

namespace horon::torch_detail {
namespace {

// Arithmetic::multiply_add(a, b, c) is a * b + c. The order of operations and what is rounded
// before is that of torch::optim::SGD.
template <class Arithmetic, class T>
void sgd_loop(T* __restrict parameter, const T* __restrict gradient, T* __restrict buffer,
              int64_t count, const SgdTerms& terms, bool first) {
  const bool decays = terms.weight_decay != 0;
  const bool has_momentum = terms.momentum != 0;
  const bool nesterov = terms.nesterov;
  const auto decay = static_cast<T>(terms.weight_decay);
  const auto momentum = static_cast<T>(terms.momentum);
  const auto share = static_cast<T>(1 - terms.dampening);
  const auto rate = static_cast<T>(-terms.lr);
  for (int64_t i = 0; i < count; ++i) {
    T step = gradient[i];
    if (decays) step = Arithmetic::multiply_add(parameter[i], decay, step);
    if (has_momentum) {
      const T kept =
          first ? step
                : Arithmetic::multiply_add(step, share, static_cast<T>(buffer[i] * momentum));
      buffer[i] = kept;
      step = nesterov ? Arithmetic::multiply_add(kept, momentum, step) : kept;
    }
    parameter[i] = Arithmetic::multiply_add(step, rate, parameter[i]);
  }
}

template <class Arithmetic>
SgdKernel make_sgd_kernel() {
  return {sgd_loop<Arithmetic, float>, sgd_loop<Arithmetic, double>};
}

}  // namespace
}  // namespace horon::torch_detail
