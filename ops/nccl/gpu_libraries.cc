#include "horon/ops/nccl/gpu_libraries.h"

#include <mutex>
#include <utility>

#include "horon/core/base/config.h"

namespace horon::ops {
namespace {

class LibrariesOfProcess final : public GpuLibraries {
 public:
  CudaStatus cuda() override { return cuda_status(); }
  // The variable wins over what a communicator asks for, and its calls would wait for dead peers.
  NcclStatus nccl() override {
    NcclStatus status = nccl_status();
    if (core::environment_value("NCCL_COMM_BLOCKING") == "1") {
      status.unavailable =
          "NCCL_COMM_BLOCKING=1 is set, and its calls would wait for ever for a rank that has "
          "died: "
          "unset it";
    }
    return status;
  }
  std::string bus_of(int device) override { return bus_of_cuda_device(device); }
  std::string nccl_host_id() override { return core::environment_value("NCCL_HOSTID"); }
  bool is_captured(CudaStream stream) override { return ops::is_captured(stream); }
  std::shared_ptr<CudaApi> open_cuda(int device) override { return ops::open_cuda(device); }
  std::shared_ptr<NcclApi> open_nccl(const std::shared_ptr<CudaApi>& cuda) override {
    return ops::open_nccl(cuda);
  }
};

struct InstalledLibraries {
  std::mutex mutex;
  std::shared_ptr<GpuLibraries> libraries = std::make_shared<LibrariesOfProcess>();
};

// Never destroyed: a job may outlive main().
InstalledLibraries& installed_libraries() {
  static auto* const installed = new InstalledLibraries;
  return *installed;
}

}  // namespace

std::shared_ptr<GpuLibraries> gpu_libraries() {
  InstalledLibraries& installed = installed_libraries();
  const std::lock_guard lock(installed.mutex);
  return installed.libraries;
}

void install_gpu_libraries(std::shared_ptr<GpuLibraries> libraries) {
  if (libraries == nullptr) libraries = std::make_shared<LibrariesOfProcess>();
  InstalledLibraries& installed = installed_libraries();
  const std::lock_guard lock(installed.mutex);
  installed.libraries = std::move(libraries);
}

}  // namespace horon::ops
