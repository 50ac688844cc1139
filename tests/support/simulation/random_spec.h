// Random tensors to negotiate about, and random hosts.
#pragma once

#include <cstddef>
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

// A spec that fuses with others of its kind.
core::SpecPtr plain_spec();

// The host of each rank (Controller::Options::host_of): in half of the cases one host for all;
// otherwise hosts at random, whose ranks may be neighbours or not.
std::vector<int> random_hosts(std::mt19937_64& random, size_t ranks);

}  // namespace horon::simulation
