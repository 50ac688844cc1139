#include "horon/torch_bindings/gradients/fma_instruction.h"

namespace horon::torch_detail {

bool has_fma_instruction() { return false; }  // it is not known

}  // namespace horon::torch_detail
