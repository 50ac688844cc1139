#include "horon/ops/cuda/free_pinned.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "horon/core/base/blocked_signals.h"

namespace horon::ops {

void PinnedFrees::free(std::shared_ptr<CudaApi> api, std::byte* memory) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    std::erase_if(under_way_, [](const std::future<void>& one) {
      return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
    std::promise<void> freed;
    under_way_.push_back(freed.get_future());
    const core::BlockedSignals blocked;  // the thread inherits them
    std::thread([api = std::move(api), memory, freed = std::move(freed)]() mutable {
      (void)api->exchange_capture_mode(CudaApi::kStaysOutOfCaptures);
      api->free_pinned(memory);
      freed.set_value();
    }).detach();
  } catch (...) {  // no thread can be started: better lose the memory than block this thread
  }
}

void PinnedFrees::wait(std::chrono::milliseconds at_most) noexcept {
  const auto limit = std::chrono::steady_clock::now() + at_most;
  const std::lock_guard lock(mutex_);
  for (const std::future<void>& one : under_way_) (void)one.wait_until(limit);
  under_way_.clear();
}

}  // namespace horon::ops
