// Random tensors to negotiate about.
#pragma once

#include <random>
#include <string>

#include "horon/core/negotiation/protocol.h"

namespace horon::simulation {

core::SpecPtr random_spec(std::mt19937_64& random, const std::string& name, int size);

// The same with one thing changed that all ranks must agree on.
core::SpecPtr random_change(std::mt19937_64& random, const core::SpecPtr& spec, int size);

}  // namespace horon::simulation
