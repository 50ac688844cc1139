// Where a job gets CUDA and NCCL from: the libraries of this process, or what a test puts in their
// place.
#pragma once

#include <memory>
#include <string>

#include "horon/ops/cuda/cuda_library.h"
#include "horon/ops/nccl/nccl_library.h"

namespace horon::ops {

// Any thread.
class GpuLibraries {
 public:
  virtual ~GpuLibraries() = default;
  // As cuda_status() and nccl_status().
  virtual CudaStatus cuda() = 0;
  virtual NcclStatus nccl() = 0;
  // Where a device is plugged in: "0000:3B:00.0". The same for the same GPU in all processes of a
  // host. Makes no context. Throws Error.
  virtual std::string bus_of(int device) = 0;
  // The name of this host that NCCL was told (NCCL_HOSTID); empty if it was told none.
  virtual std::string nccl_host_id() = 0;
  // As is_captured().
  virtual bool is_captured(CudaStream /*stream*/) { return false; }
  // As open_cuda() and open_nccl().
  virtual std::shared_ptr<CudaApi> open_cuda(int device) = 0;
  virtual std::shared_ptr<NcclApi> open_nccl(const std::shared_ptr<CudaApi>& cuda) = 0;
};

// What the next job of this process will use. Any thread.
std::shared_ptr<GpuLibraries> gpu_libraries();
// For tests, before init(). Null: the libraries of the process.
void install_gpu_libraries(std::shared_ptr<GpuLibraries> libraries);

}  // namespace horon::ops
