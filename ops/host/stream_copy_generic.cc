#include "horon/core/base/copy_bytes.h"
#include "horon/ops/host/stream_copy.h"

namespace horon::ops {

void stream_copy(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  core::copy_bytes(to, from, bytes);
}

}  // namespace horon::ops
