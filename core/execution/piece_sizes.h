// What the length of pieces (EntrySpec::piece_bytes) changes for an op.
#pragma once

#include <cstdint>

namespace horon::core {

// In bytes of what it reduces. The op takes what is shorter or longer for `least` or `most`;
// `usual` is about what it chooses itself. All 0: it takes no notice of the length that it is
// given.
struct PieceSizes {
  int64_t least = 0;
  int64_t most = 0;
  int64_t usual = 0;

  bool operator==(const PieceSizes&) const = default;
};

}  // namespace horon::core
