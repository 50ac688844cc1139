// Linux futex: waiting for a 32-bit word to change, in private or shared memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace horon::core {

// Sleeps while word == expected, until futex_wake_all() or the timeout. May return early.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected,
                std::chrono::nanoseconds timeout) noexcept;
// Wakes all threads that sleep on the word, in all processes.
void futex_wake_all(const std::atomic<uint32_t>& word) noexcept;

}  // namespace horon::core
