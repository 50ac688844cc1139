// Which kernels an x86-64 machine can run.
#include <cpuid.h>

#include "horon/ops/host/kernel_table.h"
#include "horon/ops/host/kernels_x86.h"

namespace horon::ops {
namespace {

// Not every compiler's __builtin_cpu_supports() knows the name of this feature.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

std::vector<const KernelTable*> usable_kernels() {
  std::vector<const KernelTable*> usable;
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    usable.push_back(&avx512_kernels());
  }
  if (has_avx2) usable.push_back(&avx2_kernels());
  usable.push_back(&portable_kernels());
  return usable;
}

}  // namespace horon::ops
