// Which algorithm each kind of collective takes among the members of a set, by length, for people.
#pragma once

#include <string>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/ops/communicator/communicator.h"

namespace horon::ops {

// For float32: "allreduce: cells to 8 KiB, then pieces", one line for each kind. Lengths are
// rounded to a power of two. `config`: that of the job, whose ops are made from both (builtin.h).
std::vector<std::string> explain_choices(const Communicator& communicator,
                                         const core::Config& config);

}  // namespace horon::ops
