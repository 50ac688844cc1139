// A Horon session on the GPUs of torch_device.h, around all tests of a program: each rank has one
// of its own. To include this file is enough.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include "horon/ops/nccl/gpu_libraries.h"
#include "horon/ops/session/running_job.h"
#include "horon/tests/support/host_gpu/host_nccl.h"
#include "horon/tests/torch_bindings/host_gpu/torch_device.h"
#include "horon/torch_bindings/session.h"

namespace horon::testing_support {

class HostGpus final : public ops::GpuLibraries {
 public:
  static constexpr int kDevices = 4;

  HostGpus() {
    for (int device = 0; device < kDevices; ++device) {
      test::HostCuda::Options options;
      options.delay_us_max = 200;
      options.seed = static_cast<uint32_t>(device + 1);
      devices.push_back(std::make_shared<test::HostCuda>(device, options));
    }
  }
  ops::CudaStatus cuda() override {
    ops::CudaStatus status;
    status.devices = why_no_device.empty() ? kDevices : 0;
    status.unavailable = why_no_device;
    return status;
  }
  ops::NcclStatus nccl() override {
    ops::NcclStatus status;
    status.version = why_no_nccl.empty() ? 22809 : 0;
    status.unavailable = why_no_nccl;
    return status;
  }
  std::string bus_of(int device) override { return "bus " + std::to_string(device); }
  std::string nccl_host_id() override { return ""; }
  bool is_captured(ops::CudaStream stream) override { return test::HostCuda::is_captured(stream); }
  std::shared_ptr<ops::CudaApi> open_cuda(int device) override {
    return devices.at(static_cast<size_t>(device));
  }
  std::shared_ptr<ops::NcclApi> open_nccl(const std::shared_ptr<ops::CudaApi>& cuda) override {
    return std::make_shared<test::HostNccl>(std::dynamic_pointer_cast<test::HostCuda>(cuda));
  }

  std::vector<std::shared_ptr<test::HostCuda>> devices;
  // For the next session.
  std::string why_no_device;
  std::string why_no_nccl;
};

inline HostGpus& host_gpus() {
  static const auto gpus = std::make_shared<HostGpus>();
  static const bool installed = [] {
    test::install_torch_device(gpus->devices);
    ops::install_gpu_libraries(gpus);
    return true;
  }();
  (void)installed;
  return *gpus;
}

// GPUS_OF_ODD_RANKS=1 in the environment: the others have none.
inline bool has_no_gpu() {
  if (std::getenv("GPUS_OF_ODD_RANKS") == nullptr) return false;
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) throw std::runtime_error("Open MPI says no rank");
  return std::atoi(rank) % 2 == 0;
}

class GpuSessionEnvironment : public ::testing::Environment {
  void SetUp() override {
    host_gpus().why_no_device = has_no_gpu() ? "no NVIDIA driver" : "";
    init();
    // Else the tests would run on the CPU and pass.
    ASSERT_EQ(device().is_cuda(), !has_no_gpu());
  }
  void TearDown() override { shutdown(); }
};

inline const auto* const kGpuSession =
    ::testing::AddGlobalTestEnvironment(new GpuSessionEnvironment);

// Of the device of this rank.
inline test::HostCuda& my_gpu() {
  return *host_gpus().devices.at(static_cast<size_t>(device().index()));
}

// An allreduce is done when it is enqueued. False: the host drives it.
inline bool device_reduces() {
  const auto choice = ops::explain_selection({}, CollectiveKind::Allreduce, DeviceKind::Cuda);
  return std::count(choice.begin(), choice.end(), "nccl_allreduce: chosen") > 0;
}

// How often anything has made the host wait for the device of this rank, if it has one.
inline int host_waits() {
  return device().is_cpu() ? 0 : my_gpu().host_waits() + test::torch_host_waits();
}

}  // namespace horon::testing_support
