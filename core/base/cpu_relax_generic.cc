#include "horon/core/base/cpu_relax.h"

namespace horon::core {

// There is no portable instruction; the call alone makes the loop read the cache line less often.
void cpu_relax() noexcept {}

}  // namespace horon::core
