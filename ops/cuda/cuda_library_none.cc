// Built without CUDA.
#include "horon/core/base/error.h"
#include "horon/ops/cuda/cuda_library.h"

namespace horon::ops {

const CudaStatus& cuda_status() {
  static const CudaStatus status = [] {
    CudaStatus without;
    without.unavailable = "built without CUDA";
    return without;
  }();
  return status;
}

std::string bus_of_cuda_device(int /*device*/) {
  throw Error(ErrorCode::Config, "Horon was built without CUDA; build it with -DHORON_CUDA=ON");
}

bool is_captured(CudaStream /*stream*/) noexcept { return false; }

std::shared_ptr<CudaApi> open_cuda(int /*device*/) {
  throw Error(ErrorCode::Config, "Horon was built without CUDA; build it with -DHORON_CUDA=ON");
}

}  // namespace horon::ops
