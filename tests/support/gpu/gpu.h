// The GPU that a test runs on: a real one, or the one that is made of threads. The library that the
// test is linked with decides: horon_real_gpu or horon_thread_gpu.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "horon/ops/cuda/cuda_api.h"
#include "horon/ops/nccl/nccl_api.h"

namespace horon::test {

// One rank's GPU, with the operations that only tests need.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const std::shared_ptr<ops::CudaApi>& cuda() const = 0;
  virtual std::shared_ptr<ops::NcclApi> open_nccl() = 0;
  // Memory that the device and the host reach at the same address.
  virtual std::shared_ptr<std::byte> common_memory(size_t bytes) = 0;
};

enum class Needs { Cuda, CudaAndNccl };

// The GPU of this rank. Null: there is none, and `why_none` says why. All ranks of a machine get
// the same answer.
std::unique_ptr<Gpu> open_gpu(int rank, Needs needs, std::string& why_none);

}  // namespace horon::test
