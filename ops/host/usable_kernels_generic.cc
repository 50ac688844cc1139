// Which kernels a machine of another family than x86-64 and ARM can run: the portable ones.
#include "horon/ops/host/kernel_table.h"

namespace horon::ops {

std::vector<const KernelTable*> usable_kernels() { return {&portable_kernels()}; }

}  // namespace horon::ops
