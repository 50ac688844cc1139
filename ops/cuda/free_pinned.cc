#include "horon/ops/cuda/free_pinned.h"

#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "horon/core/base/blocked_signals.h"

namespace horon::ops {
namespace {

// Where nothing runs on the device this takes no time. The thread may stay behind.
constexpr std::chrono::milliseconds kFreeingMax{200};

}  // namespace

void free_pinned_elsewhere(std::shared_ptr<CudaApi> api, std::byte* memory) noexcept {
  try {
    const auto freed = std::make_shared<std::promise<void>>();
    const core::BlockedSignals blocked;  // the thread inherits them
    std::thread([api = std::move(api), memory, freed] {
      (void)api->exchange_capture_mode(CudaApi::kStaysOutOfCaptures);
      api->free_pinned(memory);
      freed->set_value();
    }).detach();
    (void)freed->get_future().wait_for(kFreeingMax);
  } catch (...) {  // no thread to be had: rather the memory than this one
  }
}

}  // namespace horon::ops
