// The tables of the kernels of 64-bit ARM.
#pragma once

#include "horon/ops/host/kernel_table.h"

namespace horon::ops {

const KernelTable& neon_kernels();

}  // namespace horon::ops
