// The kernels that copy, for the device; compiled by nvcc.
#pragma once

#include "horon/ops/cuda/cuda_api.h"
#include "horon/ops/cuda/move.h"

namespace horon::ops {

// The results are CUDA's error codes as numbers, so that this compiles without CUDA: 0 is
// cudaSuccess.
// Enqueues one kernel.
int launch_moves(const MoveLaunch& launch, CudaStream stream);
// Loads all kernels to the current device.
int load_move_kernels();

}  // namespace horon::ops
