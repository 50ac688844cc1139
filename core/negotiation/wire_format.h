// Envelopes as bytes: little-endian, varint numbers, every length checked against what is there and
// against its limit.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "horon/core/negotiation/protocol.h"

namespace horon::core {

// The last message of a rank in a failed job: "I have ended". It concerns no set.
std::vector<std::byte> farewell();
bool is_farewell(std::span<const std::byte> bytes);

// The process set that a message is about; reads no more than that. Throws Error(Internal).
uint32_t set_of(std::span<const std::byte> bytes);
std::vector<std::byte> encode(const Envelope& envelope);

// Throws Error(Internal) naming what is wrong for anything that encode() can't have made, so that
// encode(decode(bytes)) == bytes. Refuses shapes that are negative or of more than 2^63 - 1 bytes.
// Never reads past the end and never allocates more than a small multiple of the input.
Envelope decode(std::span<const std::byte> bytes);

}  // namespace horon::core
