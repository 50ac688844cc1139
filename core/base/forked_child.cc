#include "horon/core/base/forked_child.h"

#include <atomic>
#include <pthread.h>

#include "horon/core/base/error.h"

namespace horon::core {
namespace {

std::atomic<bool> forked{false};

}  // namespace

void watch_for_forks() {
  [[maybe_unused]] static const int set =
      pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
}

bool in_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

void refuse_forked_child() {
  if (!in_forked_child()) return;
  throw Error(ErrorCode::NotInitialized,
              "this process was made by fork() after horon::init(); the session belongs to its "
              "parent. Fork before init(), or start the child with exec");
}

}  // namespace horon::core
