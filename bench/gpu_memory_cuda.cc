#include <cuda_runtime_api.h>

#include "horon/bench/gpu_memory.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::bench {
namespace {

class CudaGpuMemory final : public GpuMemory {
 public:
  explicit CudaGpuMemory(std::shared_ptr<ops::CudaApi> cuda) : cuda_(std::move(cuda)) {}

  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    return {cuda_->allocate(bytes), [cuda = cuda_](std::byte* memory) { cuda->free(memory); }};
  }
  void write(std::byte* to, const std::byte* from, size_t bytes) override {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  void read(std::byte* to, const std::byte* from, size_t bytes) override {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }

 private:
  void copy(std::byte* to, const std::byte* from, size_t bytes, cudaMemcpyKind kind) const {
    cuda_->use();
    cudaError_t error = cudaMemcpy(to, from, bytes, kind);
    // Small copies to the device may return before they have arrived.
    if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy);
    if (error == cudaSuccess) return;
    throw Error(ErrorCode::OperationFailed,
                core::concat("cudaMemcpy: ", cudaGetErrorString(error)));
  }

  const std::shared_ptr<ops::CudaApi> cuda_;
};

}  // namespace

std::unique_ptr<GpuMemory> open_gpu_memory(const std::shared_ptr<ops::CudaApi>& cuda) {
  return std::make_unique<CudaGpuMemory>(cuda);
}

}  // namespace horon::bench
