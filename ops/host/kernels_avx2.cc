// The kernels for x86-64 with AVX2 and F16C. CMake compiles only this file for that instruction
// set.
#include <immintrin.h>

#include "horon/ops/host/kernel_loops.h"
#include "horon/ops/host/kernels_x86.h"

namespace horon::ops {
namespace {

struct Avx2 {
  static constexpr int kVectorBytes = 32;

  template <class V>
  static V load_half(const uint16_t* from) {
    return (V)_mm256_cvtph_ps(load_vector<__m128i>(from));
  }
  template <class V>
  static void store_half(uint16_t* to, const V& value) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    store_vector(to, _mm256_cvtps_ph((__m256)value, kNearest));
  }
};

}  // namespace

const KernelTable& avx2_kernels() {
  static const KernelTable table = make_table<Avx2>("avx2");
  return table;
}

}  // namespace horon::ops
