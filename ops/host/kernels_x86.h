// The tables of the x86-64 kernels. Call one only on a machine that has its instruction set.
#pragma once

#include "horon/ops/host/kernel_table.h"

namespace horon::ops {

const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();

}  // namespace horon::ops
