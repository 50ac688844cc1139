// Whether this machine multiplies and adds in one instruction, with one rounding.
#pragma once

namespace horon::torch_detail {

// Defined in fma_instruction_x86.cc, _aarch64.cc or _generic.cc; the build picks one.
bool has_fma_instruction();

}  // namespace horon::torch_detail
