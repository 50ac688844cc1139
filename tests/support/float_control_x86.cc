#include <xmmintrin.h>

#include "horon/tests/support/float_control.h"

namespace horon::core {
namespace {

constexpr uint64_t kExceptionFlags = 0x3f;  // exceptions that have occurred
constexpr uint64_t kPlain = 0x1f80;

}  // namespace

uint64_t float_control() { return _mm_getcsr() & ~kExceptionFlags; }

void set_float_control(uint64_t word) { _mm_setcsr(static_cast<unsigned>(word)); }

uint64_t plain_float_control() { return kPlain; }

std::vector<uint64_t> chosen_float_controls() {
  constexpr uint64_t subnormals_are_zero = 0x40, flush_to_zero = 0x8000;
  constexpr uint64_t downward = 0x2000, upward = 0x4000;
  return {kPlain | subnormals_are_zero, kPlain | flush_to_zero, kPlain | downward, kPlain | upward};
}

}  // namespace horon::core
