// Collectives as ranges of NVTX, which Nsight Systems draws beside kernels and calls of NCCL
// (https://nvidia.github.io/NVTX). One file of two is built (ops/CMakeLists.txt): with NVTX, or
// without it.
#pragma once

#include <memory>

#include "horon/core/base/live_ranges.h"

namespace horon::ops {

// The ranges of the domain "Horon"; null where no tool records NVTX in this process, and in a build
// without NVTX. Asks once: a tool attaches before the first call of NVTX in the process, or never.
std::unique_ptr<core::LiveRanges> nvtx_ranges();

}  // namespace horon::ops
