#include "horon/core/runtime/busy_runners.h"

#include <algorithm>

#include "horon/core/runtime/set_runner.h"

namespace horon::core {

void BusyRunners::reserve(size_t count) {
  if (count > list_.capacity()) list_.reserve(2 * count);
}

void BusyRunners::remove(const SetRunner& runner) noexcept { std::erase(list_, &runner); }

void BusyRunners::drop_idle() noexcept {
  std::erase_if(list_, [](SetRunner* runner) { return runner->rests(); });
}

}  // namespace horon::core
