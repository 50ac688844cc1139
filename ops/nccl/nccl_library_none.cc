// Built without NCCL.
#include "horon/core/base/error.h"
#include "horon/ops/nccl/nccl_library.h"

namespace horon::ops {

const NcclStatus& nccl_status() {
  static const NcclStatus status = [] {
    NcclStatus without;
    without.unavailable = "built without CUDA";
    return without;
  }();
  return status;
}

std::shared_ptr<NcclApi> open_nccl(const std::shared_ptr<CudaApi>& /*cuda*/) {
  throw Error(ErrorCode::Config, "Horon was built without NCCL; build it with -DHORON_CUDA=ON");
}

}  // namespace horon::ops
