// Gives back pinned memory without a wait for the device.
#pragma once

#include <cstddef>
#include <memory>

#include "horon/ops/cuda/cuda_api.h"

namespace horon::ops {

// cudaFreeHost() may wait for all work of the device, also for kernels that wait for other ranks.
// So it is called on a thread of its own, for which this call waits 200 ms at most. Any thread;
// never throws.
void free_pinned_elsewhere(std::shared_ptr<CudaApi> api, std::byte* memory) noexcept;

}  // namespace horon::ops
