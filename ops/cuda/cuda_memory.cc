#include "horon/ops/cuda/cuda_memory.h"

#include <algorithm>

#include "horon/ops/cuda/cuda_event.h"

namespace horon::ops {

CudaEvent::CudaEvent(std::shared_ptr<CudaApi> api, CudaStream stream)
    : api_(std::move(api)), event_(api_->create_event()) {
  try {
    api_->record(event_, stream);
  } catch (...) {
    api_->destroy_event(event_);
    throw;
  }
}

bool CudaQueue::wait_for(core::Event& event) {
  const auto* const of_cuda = dynamic_cast<const NativeCudaEvent*>(&event);
  if (of_cuda == nullptr) return false;
  api().wait_in(stream(), of_cuda->handle());
  return true;
}

void CudaQueue::copy(std::span<const core::CopyItem> items) {
  for (const MoveLaunch& launch : make_launches(items)) api().launch(launch, stream());
}

std::shared_ptr<core::Event> CudaQueue::record() {
  if (is_for_captures()) return std::make_shared<CapturedEvent>(opened()->api, stream());
  return std::make_shared<CudaEvent>(opened()->api, stream());
}

std::shared_ptr<std::byte> CudaQueue::allocate(size_t bytes) {
  if (is_for_captures()) {
    const auto is_free = [&](const Kept& kept) {
      return kept.bytes >= bytes && kept.memory.use_count() == 1;
    };
    const auto found = std::find_if(kept_.begin(), kept_.end(), is_free);
    if (found != kept_.end()) return found->memory;
    std::shared_ptr<std::byte> memory(api().allocate(bytes),
                                      [api = opened()->api](std::byte* kept) { api->free(kept); });
    kept_.push_back({memory, bytes});
    return memory;
  }
  return {api().allocate_in(stream(), bytes),
          [stream = opened()](std::byte* memory) { stream->api->free_in(stream->handle, memory); }};
}

}  // namespace horon::ops
