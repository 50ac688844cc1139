// What this build and this machine offer for GPUs, in words.
#pragma once

#include <string>

namespace horon::ops {

// "13.0: no NVIDIA driver", "13.0, driver 13.0: 8 devices", "built without CUDA".
std::string cuda_fact();
// "2.28.9 (/usr/lib/libnccl.so.2), built with 2.28.9, has windows". Loads the library.
std::string nccl_fact();

}  // namespace horon::ops
