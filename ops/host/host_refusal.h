// The reasons that all ops on host memory have in common for not running a batch.
#pragma once

#include <string>

#include "horon/core/execution/collective_op.h"

namespace horon::ops {

// Empty if an op for `kind` on host memory can run such a batch.
std::string host_refusal(const core::BatchFacts& facts, CollectiveKind kind);

}  // namespace horon::ops
