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
template <class Arithmetic, bool kScales, class T>
void sgd_loop(T* __restrict parameter, T* __restrict gradient, T* __restrict buffer, int64_t count,
              const SgdTerms& terms, bool first) {
  const bool decays = terms.weight_decay != 0;
  const bool has_momentum = terms.momentum != 0;
  const bool nesterov = terms.nesterov;
  const auto decay = static_cast<T>(terms.weight_decay);
  const auto momentum = static_cast<T>(terms.momentum);
  const auto share = static_cast<T>(1 - terms.dampening);
  const auto rate = static_cast<T>(-terms.lr);
  const auto factor = static_cast<T>(terms.gradient_factor);
  for (int64_t i = 0; i < count; ++i) {
    T step = gradient[i];
    if constexpr (kScales) {
      step = static_cast<T>(step * factor);
      gradient[i] = step;
    }
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

template <class Arithmetic, class T>
void sgd_step(T* parameter, T* gradient, T* buffer, int64_t count, const SgdTerms& terms,
              bool first) {
  if (terms.gradient_factor == 1) {
    sgd_loop<Arithmetic, false>(parameter, gradient, buffer, count, terms, first);
  } else {
    sgd_loop<Arithmetic, true>(parameter, gradient, buffer, count, terms, first);
  }
}

template <class Arithmetic>
SgdKernel make_sgd_kernel() {
  return {sgd_step<Arithmetic, float>, sgd_step<Arithmetic, double>};
}

}  // namespace
}  // namespace horon::torch_detail
