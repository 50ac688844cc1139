// Random messages with every kind of item and every field in use.
#pragma once

#include <random>

#include "horon/core/negotiation/protocol.h"

namespace horon::simulation {

core::Item random_item(std::mt19937_64& random, size_t kind);
core::Envelope random_envelope(std::mt19937_64& random);

// Field by field; specs are compared by value, numbers by their bits.
bool same(const core::Envelope& a, const core::Envelope& b);

}  // namespace horon::simulation
