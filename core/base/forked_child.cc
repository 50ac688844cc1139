#include "horon/core/base/forked_child.h"

#include <atomic>
#include <pthread.h>

namespace horon::core {
namespace {

std::atomic<bool> forked{false};

}  // namespace

void watch_for_forks() {
  [[maybe_unused]] static const int set =
      pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
}

bool in_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

}  // namespace horon::core
