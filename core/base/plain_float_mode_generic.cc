#include "horon/core/base/plain_float_mode.h"

namespace horon::core {

void PlainFloatMode::enter() noexcept {
  std::fegetenv(&before_.whole);
  std::fesetenv(FE_DFL_ENV);
}

void PlainFloatMode::leave() noexcept { std::fesetenv(&before_.whole); }

}  // namespace horon::core
