// Which algorithm each kind of collective takes among the members of a set, by length, for people.
#pragma once

#include <string>
#include <vector>

#include "horon/ops/communicator/communicator.h"

namespace horon::ops {

// Of float32: "allreduce: cells to 8 KiB, then pieces", one line for each kind. Lengths are told to
// a power of two.
std::vector<std::string> explain_choices(const Communicator& communicator, bool shared_memory);

}  // namespace horon::ops
