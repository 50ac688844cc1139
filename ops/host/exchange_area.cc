#include "horon/ops/host/exchange_area.h"

#include <algorithm>

namespace horon::ops {
namespace {

size_t square(int ranks) { return static_cast<size_t>(ranks) * static_cast<size_t>(ranks); }

}  // namespace

size_t ExchangeCell::bytes(int ranks) {
  const size_t each = sizeof(ExchangeMember) + static_cast<size_t>(payload_bytes_max(ranks));
  return 2 * sizeof(core::SharedCounter) + static_cast<size_t>(ranks) * each +
         square(ranks) * sizeof(ExchangePair);
}

// It shrinks with the number of ranks, so that the cells of all stay in the cache.
int64_t ExchangeCell::payload_bytes_max(int ranks) {
  return std::clamp<int64_t>((int64_t{32} << 10) / ranks, 512, 8 << 10) / 64 * 64;
}

std::byte* ExchangeCell::payload(int rank) const {
  auto* const payloads = reinterpret_cast<std::byte*>(pairs() + square(ranks_));
  return payloads + static_cast<size_t>(rank) * static_cast<size_t>(payload_bytes_max(ranks_));
}

}  // namespace horon::ops
