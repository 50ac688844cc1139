// The kernels that copy, for the device; compiled by nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include "horon/ops/cuda/move.h"

namespace horon::ops {

// Enqueues one kernel; returns CUDA's answer.
cudaError_t launch_moves(const MoveLaunch& launch, int multiprocessors, cudaStream_t stream);
// Loads all of them to the current device.
cudaError_t load_move_kernels();

}  // namespace horon::ops
