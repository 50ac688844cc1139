// This pthread_create() replaces that of the C library, for all shared libraries too, and calls it
// unless it refuses.
#include "horon/tests/support/thread_refusal.h"

#include <cerrno>
#include <dlfcn.h>
#include <pthread.h>

namespace horon::testing_support {
namespace {

thread_local bool refuses = false;
thread_local int refused = 0;

using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

}  // namespace

ThreadRefusal::ThreadRefusal() {
  refuses = true;
  refused = 0;
}

ThreadRefusal::~ThreadRefusal() { refuses = false; }

int ThreadRefusal::count() const { return refused; }

}  // namespace horon::testing_support

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  using namespace horon::testing_support;
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (!refuses) return create(thread, attributes, run, argument);
  ++refused;
  return EAGAIN;
}
