#include "horon/core/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace horon::core {
namespace {

// Not FUTEX_PRIVATE_FLAG, since the word may lie in memory that processes share.
void call(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* limit) {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), operation, value, limit, nullptr, 0);
}

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected,
                std::chrono::nanoseconds timeout) noexcept {
  if (timeout.count() <= 0) return;
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000'000);
  limit.tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000);
  call(word, FUTEX_WAIT, expected, &limit);
}

void futex_wake_all(const std::atomic<uint32_t>& word) noexcept {
  call(word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace horon::core
