// The kernels for x86-64 with AVX-512 (F, BW, DQ, VL). CMake compiles only this file for that
// instruction set.
#include <immintrin.h>

#include "horon/ops/host/kernel_loops.h"
#include "horon/ops/host/kernels_x86.h"

namespace horon::ops {
namespace {

struct Avx512 {
  static constexpr int kVectorBytes = 64;
  // The intrinsics without a mask read an undefined register in the compiler's headers, which
  // causes warnings.
  static constexpr __mmask16 kAll = 0xffff;

  template <class V>
  static V load_half(const uint16_t* from) {
    return (V)_mm512_maskz_cvtph_ps(kAll, load_vector<__m256i>(from));
  }
  template <class V>
  static void store_half(uint16_t* to, const V& value) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    store_vector(to, _mm512_maskz_cvtps_ph(kAll, (__m512)value, kNearest));
  }
};

}  // namespace

const KernelTable& avx512_kernels() {
  static const KernelTable table = make_table<Avx512>("avx512");
  return table;
}

}  // namespace horon::ops
