// Which kernels a machine with 64-bit ARM can run: all that there are.
#include "horon/ops/host/kernel_table.h"
#include "horon/ops/host/kernels_aarch64.h"

namespace horon::ops {

std::vector<const KernelTable*> usable_kernels() { return {&neon_kernels(), &portable_kernels()}; }

}  // namespace horon::ops
