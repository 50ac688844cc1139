// What is wrong with one call on this rank alone, before anybody else hears of it.
#pragma once

#include <array>
#include <span>
#include <string>

#include "horon/core/runtime/submission.h"

namespace horon::core {

// By kind: the index of the device that this rank works on; kNoDevice: on none of this kind.
using DeviceIndices = std::array<int, kDeviceKindCount>;
inline constexpr int kNoDevice = -1;

// One sentence that names the tensor, the value and the cure; empty if the submission is fine.
// `ranks`: the members of its process set, this rank being one of them.
std::string find_fault(const Submission& submission, int rank, std::span<const int> ranks,
                       const DeviceIndices& devices);

}  // namespace horon::core
