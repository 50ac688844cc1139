// Copies of data of programs, which may begin anywhere in a page.
#pragma once

#include <cstddef>

namespace horon::core {

// As memcpy(), without its slow case. From 2 KiB on glibc copies by "rep movsb" where the CPU says
// that it is good at that (its bug 30994; seen with 2.36). AMD's Zen 3 then moves 2 GB/s in place
// of 40 if the destination lies 1 to 31 bytes further in its page than the source: what malloc()
// gives for large sizes begins 16 bytes after a page, shared memory at a page. For other pairs of
// addresses one comparison is added.
void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) noexcept;

}  // namespace horon::core
