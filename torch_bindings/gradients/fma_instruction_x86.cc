#include <ATen/Version.h>

#include "horon/torch_bindings/gradients/fma_instruction.h"

namespace horon::torch_detail {

// LibTorch says AVX2 or AVX512 only where there is the instruction.
bool has_fma_instruction() { return at::get_cpu_capability().starts_with("AVX"); }

}  // namespace horon::torch_detail
