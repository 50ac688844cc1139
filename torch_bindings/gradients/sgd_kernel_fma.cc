// CMake compiles this file for machines that have the instruction, and keeps the compiler from
// fusing anything else.
#include "horon/torch_bindings/gradients/sgd_loop.h"

namespace horon::torch_detail {
namespace {

struct OneRounding {
  static float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
};

}  // namespace

SgdKernel sgd_kernel_fma() { return make_sgd_kernel<OneRounding>(); }

}  // namespace horon::torch_detail
