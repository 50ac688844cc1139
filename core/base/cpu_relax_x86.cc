#include "horon/core/base/cpu_relax.h"

namespace horon::core {

void cpu_relax() noexcept { __builtin_ia32_pause(); }

}  // namespace horon::core
