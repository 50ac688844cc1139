// Random tensors to negotiate about.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "horon/core/negotiation/protocol.h"

namespace horon::simulation {

// `ranks`: who may be the root.
core::SpecPtr random_spec(std::mt19937_64& random, const std::string& name,
                          const std::vector<int>& ranks);

// The same with one thing changed that all ranks must agree on.
core::SpecPtr random_change(std::mt19937_64& random, const core::SpecPtr& spec,
                            const std::vector<int>& ranks);

}  // namespace horon::simulation
