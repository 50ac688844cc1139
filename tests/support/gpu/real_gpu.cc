#include <cuda_runtime_api.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/cuda/cuda_library.h"
#include "horon/ops/nccl/nccl_library.h"
#include "horon/tests/support/gpu/gpu.h"

namespace horon::test {
namespace {

void check(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw Error(ErrorCode::OperationFailed, core::concat(call, ": ", cudaGetErrorString(error)));
}

class RealGpu final : public Gpu {
 public:
  explicit RealGpu(int device) : cuda_(ops::open_cuda(device)) {}

  const std::shared_ptr<ops::CudaApi>& cuda() const override { return cuda_; }
  std::shared_ptr<ops::NcclApi> open_nccl() override { return ops::open_nccl(cuda_); }
  std::shared_ptr<std::byte> common_memory(size_t bytes) override {
    cuda_->use();
    void* memory = nullptr;
    check("cudaHostAlloc", cudaHostAlloc(&memory, bytes, cudaHostAllocMapped));
    return {static_cast<std::byte*>(memory), [](std::byte* old) { (void)cudaFreeHost(old); }};
  }

 private:
  const std::shared_ptr<ops::CudaApi> cuda_;
};

}  // namespace

std::unique_ptr<Gpu> open_gpu(int rank, Needs needs, std::string& why_none) {
  const ops::CudaStatus& cuda = ops::cuda_status();
  why_none = cuda.unavailable;
  if (why_none.empty() && needs == Needs::CudaAndNccl) why_none = ops::nccl_status().unavailable;
  if (!why_none.empty()) return nullptr;
  return std::make_unique<RealGpu>(rank % cuda.devices);
}

}  // namespace horon::test
