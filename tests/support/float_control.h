// The word that says how this thread computes with floats. Defined in float_control_x86.cc or
// float_control_aarch64.cc; the build picks one.
#pragma once

#include <cstdint>
#include <vector>

namespace horon::core {

uint64_t float_control();
void set_float_control(uint64_t word);
// The word of a new thread.
uint64_t plain_float_control();
// Words that programs may choose; each differs from that of a new thread by one setting.
std::vector<uint64_t> chosen_float_controls();

}  // namespace horon::core
