#include "horon/tests/support/gpu/gpu.h"
#include "horon/tests/support/host_gpu/host_cuda.h"
#include "horon/tests/support/host_gpu/host_nccl.h"

namespace horon::test {
namespace {

class ThreadGpu final : public Gpu {
 public:
  explicit ThreadGpu(int rank)
      : threads_(std::make_shared<HostCuda>(0, options_of(rank))), cuda_(threads_) {}

  const std::shared_ptr<ops::CudaApi>& cuda() const override { return cuda_; }
  std::shared_ptr<ops::NcclApi> open_nccl() override {
    return std::make_shared<HostNccl>(threads_);
  }
  std::shared_ptr<std::byte> common_memory(size_t bytes) override {
    return {cuda_->allocate(bytes), [cuda = cuda_](std::byte* memory) { cuda->free(memory); }};
  }

 private:
  static HostCuda::Options options_of(int rank) {
    HostCuda::Options options;
    options.delay_us_max = 10;
    options.seed = static_cast<uint32_t>(rank) + 1;
    return options;
  }

  const std::shared_ptr<HostCuda> threads_;
  const std::shared_ptr<ops::CudaApi> cuda_;
};

}  // namespace

std::unique_ptr<Gpu> open_gpu(int rank, Needs, std::string&) {
  return std::make_unique<ThreadGpu>(rank);
}

}  // namespace horon::test
