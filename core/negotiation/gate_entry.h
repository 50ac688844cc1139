// One entry of a host's ring (gate.h). Between hosts it travels as an item of the protocol.
#pragma once

#include <cstdint>

namespace horon::core {

struct GateEntry {
  // Go: all members have filled the place. Marker: the log up to `value` records stands here.
  // Filled: all members of this host have filled the place, but perhaps not those of other hosts.
  enum class Kind : uint8_t { Go, Marker, Filled };
  Kind kind = Kind::Go;
  uint64_t value = 0;  // Go, Filled: the place
  bool more = false;   // Go: runs together with the next entry, if that is a Go and they can fuse
};

// The kind stands in the two low bits and the value above them; every number is an entry.
constexpr int kGateEntryShift = 2;

constexpr uint64_t pack(const GateEntry& entry) {
  const uint64_t more = entry.more ? 1 : 0;
  const uint64_t code = entry.kind == GateEntry::Kind::Go       ? 2 * more
                        : entry.kind == GateEntry::Kind::Marker ? 1
                                                                : 3;
  return (entry.value << kGateEntryShift) | code;
}

constexpr GateEntry unpack(uint64_t packed) {
  const uint64_t code = packed & 3;
  GateEntry entry;
  if (code == 1) entry.kind = GateEntry::Kind::Marker;
  if (code == 3) entry.kind = GateEntry::Kind::Filled;
  entry.value = packed >> kGateEntryShift;
  entry.more = code == 2;
  return entry;
}

}  // namespace horon::core
