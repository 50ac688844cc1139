// The kernels that copy, on the host.
#pragma once

#include "horon/ops/cuda/move.h"

namespace horon::test {

// Does the whole launch on this thread, as `lanes` threads of a device would.
void run_on_host(const ops::MoveLaunch& launch, uint32_t lanes = 3);

}  // namespace horon::test
