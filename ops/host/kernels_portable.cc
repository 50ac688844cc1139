// The kernels for every machine: 16-byte vectors, which all 64-bit machines have, and conversions
// in plain C++.
#include "horon/ops/host/half.h"
#include "horon/ops/host/kernel_loops.h"
#include "horon/ops/host/kernel_table.h"

namespace horon::ops {
namespace {

struct Portable {
  static constexpr int kVectorBytes = 16;

  template <class V>
  static V load_half(const uint16_t* from) {
    V value;
    for (int i = 0; i < 4; ++i) {
      uint16_t half;
      __builtin_memcpy(&half, from + i, sizeof(half));
      value[i] = float_from_half(half);
    }
    return value;
  }
  template <class V>
  static void store_half(uint16_t* to, const V& value) {
    for (int i = 0; i < 4; ++i) {
      const uint16_t half = half_from_float(value[i]);
      __builtin_memcpy(to + i, &half, sizeof(half));
    }
  }
};

}  // namespace

const KernelTable& portable_kernels() {
  static const KernelTable table = make_table<Portable>("portable");
  return table;
}

}  // namespace horon::ops
