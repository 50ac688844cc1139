#include "horon/ops/cuda/cuda_memory.h"

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

CudaQueue::CudaQueue(std::shared_ptr<CudaApi> api)
    : api_(std::move(api)), stream_(api_->create_stream()) {}

bool CudaQueue::wait_for(core::Event& event) {
  const auto* const of_cuda = dynamic_cast<const CudaEvent*>(&event);
  if (of_cuda == nullptr) return false;
  api_->wait_in(stream_, of_cuda->handle());
  return true;
}

void CudaQueue::copy(std::span<const core::CopyItem> items) {
  for (const MoveLaunch& launch : make_launches(items)) api_->launch(launch, stream_);
}

std::shared_ptr<core::Event> CudaQueue::record() {
  return std::make_shared<CudaEvent>(api_, stream_);
}

CudaMemory::CudaMemory(int device, std::function<std::shared_ptr<CudaApi>()> open)
    : device_(device), open_(std::move(open)) {}

CudaMemory::CudaMemory(std::shared_ptr<CudaApi> api)
    : device_(api->device()), api_(std::move(api)) {}

core::MemoryQueue& CudaMemory::queue() {
  if (api_ == nullptr) api_ = open_();
  if (!queue_) queue_.emplace(api_);
  return *queue_;
}

std::shared_ptr<std::byte> CudaMemory::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (api_ == nullptr) api_ = open_();
  return {api_->allocate(bytes), [api = api_](std::byte* memory) { api->free(memory); }};
}

}  // namespace horon::ops
