// The reasons for which every op on host memory refuses a batch.
#pragma once

#include <string>

#include "horon/core/execution/collective_op.h"

namespace horon::ops {

// The reason why an op for `kind` on host memory, which reduces element by element, can't run such
// a batch; empty if it can.
std::string host_refusal(const core::BatchFacts& facts, CollectiveKind kind);

}  // namespace horon::ops
