// A GPU for which Horon's kernels were not compiled.
#pragma once

#include <string_view>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::ops {

// The error that names the cure. `gpu`: its name; `major`, `minor`: its compute capability; `why`:
// CUDA's own text.
inline Error missing_kernels(std::string_view gpu, int major, int minor, std::string_view why) {
  return Error(ErrorCode::Config,
               core::concat("Horon was not compiled for ", gpu, ", of compute capability ", major,
                            ".", minor, " (CUDA: ", why, "); build it with ", major, minor,
                            " in CMAKE_CUDA_ARCHITECTURES"));
}

}  // namespace horon::ops
