// A moment in a stream.
#pragma once

#include <memory>

#include "horon/core/execution/event.h"
#include "horon/ops/cuda/cuda_api.h"

namespace horon::ops {

class CudaEvent final : public core::Event {
 public:
  // Records now.
  CudaEvent(std::shared_ptr<CudaApi> api, CudaStream stream);
  ~CudaEvent() override { api_->destroy_event(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool happened() override { return api_->happened(event_); }
  void wait() override { api_->wait_on_host(event_); }

  CudaEventHandle handle() const { return event_; }
  int device() const { return api_->device(); }

 private:
  const std::shared_ptr<CudaApi> api_;
  const CudaEventHandle event_;
};

}  // namespace horon::ops
