// What an op is told about a batch, as far as it follows from the spec and from who takes part.
#pragma once

#include <span>

#include "horon/core/base/entry_spec.h"
#include "horon/core/execution/collective_op.h"

namespace horon::core {

// Fills in all but sequence, memory and counts. `contributors`: members that have not joined.
// `ranks`: of all members.
Batch describe_batch(const EntrySpec& spec, int contributors, std::span<const int> ranks);

}  // namespace horon::core
