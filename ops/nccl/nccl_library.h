// NCCL itself, loaded at run time: the copy that LibTorch has loaded, if it has, so that there is
// never a second one in the process. One file of two is built (ops/CMakeLists.txt).
#pragma once

#include <memory>
#include <string>

#include "horon/ops/nccl/nccl_api.h"

namespace horon::ops {

struct NcclStatus {
  int version = 0;           // as NCCL_VERSION_CODE; 0: unavailable
  int header_version = 0;    // of the nccl.h that Horon was built with; 0: built without
  bool has_windows = false;  // it has ncclCommWindowRegister and ncclCommWindowDeregister
  std::string path;          // of the library that was loaded
  std::string unavailable;   // why there is none
};

// Loads the library, once. Never throws. Any thread.
const NcclStatus& nccl_status();

// Throws Error(Config) if there is no NCCL. `cuda`: of the device that the communicators will use.
std::shared_ptr<NcclApi> open_nccl(const std::shared_ptr<CudaApi>& cuda);

}  // namespace horon::ops
