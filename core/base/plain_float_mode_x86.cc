#include <xmmintrin.h>

#include "horon/core/base/plain_float_mode.h"

namespace horon::core {
namespace {

constexpr unsigned kPlain = 0x1f80;         // all exceptions masked, nothing else
constexpr unsigned kExceptionFlags = 0x3f;  // what has happened, not how to compute

}  // namespace

// Writing the word costs more than reading it, so it is written only if it differs.
void PlainFloatMode::enter() noexcept {
  before_.control = _mm_getcsr();
  if ((before_.control & ~kExceptionFlags) != kPlain) _mm_setcsr(kPlain);
}

void PlainFloatMode::leave() noexcept {
  if ((before_.control & ~kExceptionFlags) != kPlain)
    _mm_setcsr(static_cast<unsigned>(before_.control));
}

}  // namespace horon::core
