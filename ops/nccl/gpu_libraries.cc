#include "horon/ops/nccl/gpu_libraries.h"

#include <cstdlib>
#include <mutex>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/ops/nccl/nccl_setting.h"

namespace horon::ops {
namespace {

class LibrariesOfProcess final : public GpuLibraries {
 public:
  CudaStatus cuda() override { return cuda_status(); }
  // The setting overrides what a communicator asks for, and blocking calls would wait for dead
  // peers.
  NcclStatus nccl() override {
    NcclStatus status = nccl_status();
    const NcclSetting blocking = find_nccl_setting("NCCL_COMM_BLOCKING");
    if (std::strtoll(blocking.value.c_str(), nullptr, 0) == 1) {
      const bool in_file = !blocking.file.empty();
      status.unavailable = core::concat(
          "NCCL_COMM_BLOCKING=1 is set", in_file ? core::concat(" in ", blocking.file) : "",
          ", and its calls would wait for ever for a rank that has died: ",
          in_file ? "remove it there, or set NCCL_COMM_BLOCKING=0 in the environment" : "unset it");
    }
    return status;
  }
  std::string bus_of(int device) override { return bus_of_cuda_device(device); }
  std::string nccl_host_id() override { return find_nccl_setting("NCCL_HOSTID").value; }
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
