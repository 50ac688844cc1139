// What is worth measuring next.
#pragma once

#include "horon/core/tuning/gaussian_process.h"

namespace horon::core {

// By how much a value that is believed in this way is expected to lie below `best`, where a value
// above it counts as 0.
double expected_improvement(const Belief& belief, double best);

}  // namespace horon::core
