#include "horon/core/base/cpu_relax.h"

namespace horon::core {

// On most ARM cores "yield" does nothing. "isb" empties the pipeline, which takes about as long as
// the pause of x86.
void cpu_relax() noexcept { asm volatile("isb" ::: "memory"); }

}  // namespace horon::core
