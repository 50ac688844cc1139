// The few collectives that the session itself needs: small, among all ranks, and blocking.
#pragma once

#include <string>
#include <vector>

#include "horon/core/runtime/runtime.h"
#include "horon/ops/nccl/job_gpu.h"

namespace horon::ops {

// Returns when all ranks have called it with the same `what`; if they differ, throws
// Error(Mismatch) with all of them. `name`, by which they meet: "horon." and the name of the
// calling function. `gpu`, if all ranks use NCCL: the meeting keeps its place in the order of the
// collectives on devices.
void meet(core::Runtime& runtime, const std::string& name, const std::string& what,
          const JobGpu* gpu = nullptr);

// The bytes of each rank, in order of rank; lengths may differ. Throws Error.
std::vector<std::string> gather_from_all(core::Runtime& runtime, const std::string& name,
                                         const std::string& mine);

}  // namespace horon::ops
