#include "horon/ops/gpu_facts.h"

#include "horon/core/base/text.h"
#include "horon/ops/cuda/cuda_library.h"
#include "horon/ops/nccl/nccl_library.h"

namespace horon::ops {
namespace {

// 13000 is 13.0.
std::string cuda_version(int code) { return core::concat(code / 1000, ".", code % 1000 / 10); }

// 22809 is 2.28.9; before 2.9 the code had one digit less.
std::string nccl_version(int code) {
  const int major = code >= 10000 ? code / 10000 : code / 1000;
  const int below = code >= 10000 ? code % 10000 : code % 1000;
  return core::concat(major, ".", below / 100, ".", below % 100);
}

}  // namespace

std::string cuda_fact() {
  const CudaStatus& status = cuda_status();
  if (status.runtime_version == 0) return status.unavailable;
  std::string text = cuda_version(status.runtime_version);
  if (status.driver_version > 0) {
    text += core::concat(", driver ", cuda_version(status.driver_version));
  }
  return status.unavailable.empty() ? core::concat(text, ": ", status.devices,
                                                   status.devices == 1 ? " device" : " devices")
                                    : core::concat(text, ": ", status.unavailable);
}

std::string nccl_fact() {
  const NcclStatus& status = nccl_status();
  if (status.header_version == 0) return status.unavailable;
  const std::string built = core::concat("built with ", nccl_version(status.header_version));
  if (!status.unavailable.empty()) return core::concat(built, ": ", status.unavailable);
  return core::concat(nccl_version(status.version), " (", status.path, "), ", built,
                      status.has_windows ? ", has windows" : ", has no windows");
}

}  // namespace horon::ops
