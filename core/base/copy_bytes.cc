#include "horon/core/base/copy_bytes.h"

#include <cstdint>
#include <cstring>

namespace horon::core {
namespace {

// Up to this length glibc copies by vectors on every CPU, as fast as it copies anything. Volatile:
// for a length that it knows, a compiler may put a "rep movs" of its own in place of the call.
const volatile size_t kPieceBytes = 2048;
// From the size of AMD's second-level cache on, 512 KiB or this, glibc copies by vectors again. It
// copies what is much larger than the caches past them, which pieces would not.
constexpr size_t kLongBytes = size_t{1} << 20;

// `to` lies a little further in its page. glibc first aligns by up to a line, so a whole line
// counts.
bool is_just_ahead(const std::byte* to, const std::byte* from) {
  constexpr uintptr_t kPage = 4096;
  constexpr uintptr_t kLine = 64;
  const uintptr_t ahead =
      (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  return ahead - 1 < kLine - 1;  // false for 0
}

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  if (is_just_ahead(to, from) && bytes < kLongBytes) {
    const size_t piece = kPieceBytes;
    for (; bytes > piece; bytes -= piece) {
      std::memcpy(to, from, piece);
      to += piece;
      from += piece;
    }
  }
  std::memcpy(to, from, bytes);
}

}  // namespace horon::core
