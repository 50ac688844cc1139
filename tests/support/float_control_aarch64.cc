#include "horon/tests/support/float_control.h"

namespace horon::core {

uint64_t float_control() {
  uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}

void set_float_control(uint64_t word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }

uint64_t plain_float_control() { return 0; }

std::vector<uint64_t> chosen_float_controls() {
  constexpr uint64_t upward = 1 << 22, downward = 1 << 23, flush_to_zero = 1 << 24;
  constexpr uint64_t default_nan = 1 << 25, other_half = 1 << 26;
  return {upward, downward, flush_to_zero, default_nan, other_half};
}

}  // namespace horon::core
