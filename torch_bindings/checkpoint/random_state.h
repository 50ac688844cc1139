// LibTorch's default generators of this process: that of the CPU, and that of the current GPU if
// the program uses one.
#pragma once

#include <cstdint>

#include <ATen/core/ivalue.h>

namespace horon::torch_detail {

// A dictionary: "cpu" and, with CUDA, "cuda": uint8 tensors.
c10::IValue random_states();
// Goes on with the numbers that come after these states. What this process has no generator for is
// passed over.
void set_random_states(const c10::IValue& states);
// Begins anew, with the same seed for all generators.
void seed_generators(uint64_t seed);

}  // namespace horon::torch_detail
