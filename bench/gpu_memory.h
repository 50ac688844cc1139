// Memory of this rank's GPU, which the host fills and reads between two calls of a benchmark. One
// of two files is built (CMakeLists.txt); a test brings a third.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "horon/ops/nccl/job_gpu.h"

namespace horon::bench {

// Used by one thread.
class GpuMemory {
 public:
  virtual ~GpuMemory() = default;
  virtual std::shared_ptr<std::byte> allocate(size_t bytes) = 0;
  // Copy from host memory to the device, and from the device to host memory. When they return, `to`
  // holds the bytes. They throw Error(OperationFailed).
  virtual void write(std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual void read(std::byte* to, const std::byte* from, size_t bytes) = 0;
};

// Throws Error(Config) if this program was built without CUDA.
std::unique_ptr<GpuMemory> open_gpu_memory(const std::shared_ptr<ops::CudaApi>& cuda);

// The GPU of this rank. Throws Error(Config), which says what to do, if the job can't use the GPUs
// of its ranks.
std::shared_ptr<ops::JobGpu> gpu_of_rank();

}  // namespace horon::bench
