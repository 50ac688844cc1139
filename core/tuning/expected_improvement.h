// The gain that is to be expected of measuring one more value.
#pragma once

#include "horon/core/tuning/gaussian_process.h"

namespace horon::core {

// The expectation of max(best - value, 0), where the value has the distribution `belief`: the
// "expected improvement" of Bayesian optimisation.
double expected_improvement(const Belief& belief, double best);

}  // namespace horon::core
