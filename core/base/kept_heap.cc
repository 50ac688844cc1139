#include "horon/core/base/kept_heap.h"

#include <mutex>
#include <string>

#include "horon/core/base/config.h"

namespace horon::core {
namespace {

struct Keepers {
  std::mutex mutex;
  int count = 0;
};

// Never destroyed: a reducer, which owns a KeptHeap, may be destroyed at exit, after statics.
Keepers& keepers() {
  static auto* const all = new Keepers;
  return *all;
}

bool environment_decides() {
  static const bool decides =
      environment_has("MALLOC_TRIM_THRESHOLD_") || environment_has("MALLOC_MMAP_THRESHOLD_") ||
      environment_value("GLIBC_TUNABLES").find("glibc.malloc.") != std::string::npos;
  return decides;
}

}  // namespace

KeptHeap::KeptHeap() {
  if (environment_decides()) return;
  const std::lock_guard lock(keepers().mutex);
  if (keepers().count++ == 0) keep();
}

KeptHeap::~KeptHeap() {
  if (environment_decides()) return;
  const std::lock_guard lock(keepers().mutex);
  if (--keepers().count == 0) release();
}

}  // namespace horon::core
