// Built without CUDA.
#include "horon/bench/gpu_memory.h"
#include "horon/core/base/error.h"

namespace horon::bench {

std::unique_ptr<GpuMemory> open_gpu_memory(const std::shared_ptr<ops::CudaApi>& /*cuda*/) {
  throw Error(ErrorCode::Config,
              "this horon-bench was built without CUDA; build it with -DHORON_CUDA=ON");
}

}  // namespace horon::bench
