// One item of a host's ring (gate.h). Between hosts it travels in a message of the protocol.
#pragma once

#include <cstdint>

namespace horon::core {

struct RingItem {
  // Go: all members have filled the place. Marker: the log's first `value` records come before.
  // Filled: all members of this host have filled the place, but perhaps not those of other hosts.
  enum class Kind : uint8_t { Go, Marker, Filled };
  Kind kind = Kind::Go;
  uint64_t value = 0;  // Go, Filled: the place
  bool more = false;   // Go: runs together with the next one, if that is a Go and they can fuse
};

// The kind stands in the two low bits and the value above them; every number is a valid item.
constexpr int kRingItemShift = 2;

constexpr uint64_t pack(const RingItem& item) {
  const uint64_t more = item.more ? 1 : 0;
  const uint64_t code = item.kind == RingItem::Kind::Go       ? 2 * more
                        : item.kind == RingItem::Kind::Marker ? 1
                                                              : 3;
  return (item.value << kRingItemShift) | code;
}

constexpr RingItem unpack(uint64_t packed) {
  const uint64_t code = packed & 3;
  RingItem item;
  if (code == 1) item.kind = RingItem::Kind::Marker;
  if (code == 3) item.kind = RingItem::Kind::Filled;
  item.value = packed >> kRingItemShift;
  item.more = code == 2;
  return item;
}

}  // namespace horon::core
