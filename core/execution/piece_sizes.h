// What the length of pieces (EntrySpec::piece_bytes) changes for an op.
#pragma once

#include <cstdint>

namespace horon::core {

// In bytes of what the op reduces. The op clamps a length to `least` and `most`; `usual` is about
// what it chooses itself. All 0: the op ignores the length.
struct PieceSizes {
  int64_t least = 0;
  int64_t most = 0;
  int64_t usual = 0;

  bool operator==(const PieceSizes&) const = default;
};

}  // namespace horon::core
