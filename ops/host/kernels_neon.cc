// The kernels for 64-bit ARM: its vectors, and its conversions of 16-bit floats. All such machines
// have both.
#include <arm_neon.h>

#include "horon/ops/host/kernel_loops.h"
#include "horon/ops/host/kernels_aarch64.h"

namespace horon::ops {
namespace {

struct Neon {
  static constexpr int kVectorBytes = 16;

  template <class V>
  static V load_half(const uint16_t* from) {
    return (V)vcvt_f32_f16(vreinterpret_f16_u16(load_vector<uint16x4_t>(from)));
  }
  template <class V>
  static void store_half(uint16_t* to, const V& value) {
    store_vector(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value)));
  }
};

}  // namespace

const KernelTable& neon_kernels() {
  static const KernelTable table = make_table<Neon>("neon");
  return table;
}

}  // namespace horon::ops
