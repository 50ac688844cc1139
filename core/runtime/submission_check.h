// Checks a call on this rank alone, before any other rank hears of it.
#pragma once

#include <span>
#include <string>

#include "horon/core/runtime/rank_devices.h"
#include "horon/core/runtime/runnable_calls.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {

// One sentence that names the tensor, the value and the cure; empty if the submission is fine.
// `ranks`: the members of its process set, this rank being one of them.
std::string find_fault(const Submission& submission, int rank, std::span<const int> ranks,
                       const RankDevices& devices, const RunnableCalls& runnable);

}  // namespace horon::core
