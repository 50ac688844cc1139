#include "horon/core/base/wait_check.h"

#include <atomic>

namespace horon::core {
namespace {

std::atomic<WaitCheck> current{nullptr};

}  // namespace

void set_wait_check(WaitCheck check) noexcept { current.store(check, std::memory_order_release); }

WaitCheck wait_check() noexcept { return current.load(std::memory_order_acquire); }

}  // namespace horon::core
