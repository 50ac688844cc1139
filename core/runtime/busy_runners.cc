#include "horon/core/runtime/busy_runners.h"

#include <algorithm>

#include "horon/core/runtime/set_runner.h"

namespace horon::core {

void BusyRunners::reserve(size_t count) {
  if (count > list_.capacity()) list_.reserve(2 * count);
}

void BusyRunners::add(SetRunner& runner, bool waited) noexcept {
  list_.push_back(&runner);
  if (waited) --waiting_;
}

void BusyRunners::remove(const SetRunner& runner) noexcept { std::erase(list_, &runner); }

void BusyRunners::drop_idle() noexcept {
  std::erase_if(list_, [this](SetRunner* runner) {
    const bool dropped = runner->try_drop();
    if (dropped && !runner->at_rest()) ++waiting_;
    return dropped;
  });
}

void BusyRunners::clear() noexcept {
  list_.clear();
  waiting_ = 0;
}

bool BusyRunners::all_at_rest() const {
  return waiting_ == 0 && std::all_of(list_.begin(), list_.end(),
                                      [](const SetRunner* runner) { return runner->at_rest(); });
}

}  // namespace horon::core
