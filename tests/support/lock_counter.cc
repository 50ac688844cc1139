// This pthread_mutex_lock() replaces that of the C library, for all shared libraries too, and calls
// it.
#include "horon/tests/support/lock_counter.h"

#include <atomic>
#include <dlfcn.h>
#include <pthread.h>

namespace horon::testing_support {
namespace {

thread_local int64_t locks = 0;

using Lock = int (*)(pthread_mutex_t*);
std::atomic<Lock> real_lock{nullptr};

}  // namespace

int64_t locks_of_this_thread() { return locks; }

}  // namespace horon::testing_support

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  using namespace horon::testing_support;
  ++locks;
  Lock lock = real_lock.load(std::memory_order_relaxed);
  if (lock == nullptr) {
    lock = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    real_lock.store(lock, std::memory_order_relaxed);
  }
  return lock(mutex);
}
