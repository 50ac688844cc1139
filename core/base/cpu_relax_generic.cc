#include "horon/core/base/cpu_relax.h"

namespace horon::core {

// No portable hint exists; the call itself keeps the loop from hammering the cache line.
void cpu_relax() noexcept {}

}  // namespace horon::core
