// Installs HostCuda and HostNccl in place of the process's CUDA and NCCL, so that a whole job, from
// init() to shutdown(), runs on them.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "horon/ops/nccl/gpu_libraries.h"
#include "horon/tests/support/host_gpu/host_nccl.h"

namespace horon::test {

class HostGpuLibraries final : public ops::GpuLibraries {
 public:
  struct Options {
    int devices = 8;                // that this process may use
    std::string bus = "";           // of all of them; empty: each has its own
    std::string nccl_host_id = "";  // as NCCL_HOSTID
    int nccl_version = 22809;       // 0: there is no NCCL
    int opens_in_ms = 0;            // how long opening the device takes
    HostCuda::Options cuda = {};
    HostNccl::Options nccl = {};
  };
  // Takes effect from the next init() on, until install_gpu_libraries(nullptr).
  static std::shared_ptr<HostGpuLibraries> install(Options options);
  explicit HostGpuLibraries(Options options) : options_(std::move(options)) {}

  ops::CudaStatus cuda() override;
  ops::NcclStatus nccl() override;
  std::string bus_of(int device) override;
  std::string nccl_host_id() override { return options_.nccl_host_id; }
  bool is_captured(ops::CudaStream stream) override { return HostCuda::is_captured(stream); }
  std::shared_ptr<ops::CudaApi> open_cuda(int device) override;
  std::shared_ptr<ops::NcclApi> open_nccl(const std::shared_ptr<ops::CudaApi>& cuda) override;

  // The device and the library that the last job opened; null if no job has opened one.
  std::shared_ptr<HostCuda> opened_device() const;
  std::shared_ptr<HostNccl> opened_nccl() const;

 private:
  const Options options_;
  mutable std::mutex mutex_;
  std::shared_ptr<HostCuda> device_;
  std::shared_ptr<HostNccl> nccl_;
};

}  // namespace horon::test
