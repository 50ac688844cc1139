// What is wrong with one call on this rank alone, before anybody else hears of it.
#pragma once

#include <array>
#include <span>
#include <string>

#include "horon/core/runtime/runnable_calls.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {

inline constexpr int kNoDevice = -1;
// Of one kind, what this rank works on in a process set.
struct RankDevice {
  int index = kNoDevice;
  std::string unavailable;  // why there is none; empty: this build does not know the kind
};
using RankDevices = std::array<RankDevice, kDeviceKindCount>;

// One sentence that names the tensor, the value and the cure; empty if the submission is fine.
// `ranks`: the members of its process set, this rank being one of them.
std::string find_fault(const Submission& submission, int rank, std::span<const int> ranks,
                       const RankDevices& devices, const RunnableCalls& runnable);

}  // namespace horon::core
