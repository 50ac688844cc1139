#include "horon/tests/support/host_gpu/host_gpu_libraries.h"

#include <chrono>
#include <thread>
#include <utility>

namespace horon::test {

std::shared_ptr<HostGpuLibraries> HostGpuLibraries::install(Options options) {
  auto libraries = std::make_shared<HostGpuLibraries>(std::move(options));
  ops::install_gpu_libraries(libraries);
  return libraries;
}

ops::CudaStatus HostGpuLibraries::cuda() {
  ops::CudaStatus status;
  status.devices = options_.devices;
  if (status.devices == 0) status.unavailable = "this host plays no GPU";
  return status;
}

ops::NcclStatus HostGpuLibraries::nccl() {
  ops::NcclStatus status;
  status.version = options_.nccl_version;
  if (status.version == 0) status.unavailable = "this host plays no NCCL";
  return status;
}

std::string HostGpuLibraries::bus_of(int device) {
  return options_.bus.empty() ? "0000:0" + std::to_string(device) + ":00.0" : options_.bus;
}

std::shared_ptr<ops::CudaApi> HostGpuLibraries::open_cuda(int device) {
  std::this_thread::sleep_for(std::chrono::milliseconds(options_.opens_in_ms));
  const std::lock_guard lock(mutex_);
  device_ = std::make_shared<HostCuda>(device, options_.cuda);
  return device_;
}

std::shared_ptr<ops::NcclApi> HostGpuLibraries::open_nccl(
    const std::shared_ptr<ops::CudaApi>& cuda) {
  const std::lock_guard lock(mutex_);
  nccl_ = std::make_shared<HostNccl>(std::dynamic_pointer_cast<HostCuda>(cuda), options_.nccl);
  return nccl_;
}

std::shared_ptr<HostCuda> HostGpuLibraries::opened_device() const {
  const std::lock_guard lock(mutex_);
  return device_;
}

std::shared_ptr<HostNccl> HostGpuLibraries::opened_nccl() const {
  const std::lock_guard lock(mutex_);
  return nccl_;
}

}  // namespace horon::test
