#include <cstdint>

#include "horon/core/base/plain_float_mode.h"

namespace horon::core {
namespace {

// The C library's own call leaves some bits of the control register as they are: the default NaN,
// and the other format of 16-bit floats. What has happened is in another register, which stays.
constexpr uint64_t kPlain = 0;

uint64_t control() {
  uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}

void set_control(uint64_t word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }

}  // namespace

// Writing the word costs more than reading it, so it is written only if it differs.
void PlainFloatMode::enter() noexcept {
  before_.control = control();
  if (before_.control != kPlain) set_control(kPlain);
}

void PlainFloatMode::leave() noexcept {
  if (before_.control != kPlain) set_control(before_.control);
}

}  // namespace horon::core
