// A copy past the caches, for memory of which no more than a part fits into them.
#pragma once

#include <cstddef>

namespace horon::ops {

// As memcpy(). Where the machine has such stores, the destination is written to memory without
// being read into the cache first: a third less traffic, and what lies in the cache stays. Whoever
// is told afterwards that the copy is finished sees all of it. Defined in stream_copy_x86.cc or
// stream_copy_generic.cc; the build picks one.
void stream_copy(std::byte* to, const std::byte* from, size_t bytes) noexcept;

}  // namespace horon::ops
