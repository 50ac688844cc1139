// The tables of the x86-64 kernels; to be called only on a machine that has the instruction set.
#pragma once

#include "horon/ops/host/kernel_table.h"

namespace horon::ops {

const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();

}  // namespace horon::ops
