#include "horon/torch_bindings/gradients/fma_instruction.h"

namespace horon::torch_detail {

// Every 64-bit ARM does, and LibTorch uses it whatever it says of its vectors.
bool has_fma_instruction() { return true; }

}  // namespace horon::torch_detail
