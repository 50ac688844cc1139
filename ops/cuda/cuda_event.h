// Moments in streams.
#pragma once

#include <memory>

#include "horon/core/execution/event.h"
#include "horon/ops/cuda/cuda_api.h"

namespace horon::ops {

// An event of CUDA's own, whoever has recorded it: streams can wait for it.
class NativeCudaEvent : public core::Event {
 public:
  virtual CudaEventHandle handle() const = 0;
};

class CudaEvent final : public NativeCudaEvent {
 public:
  // Records now.
  CudaEvent(std::shared_ptr<CudaApi> api, CudaStream stream);
  ~CudaEvent() override { api_->destroy_event(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool happened() override { return api_->happened(event_); }
  void wait() override { api_->wait_on_host(event_); }

  CudaEventHandle handle() const override { return event_; }
  int device() const { return api_->device(); }

 private:
  const std::shared_ptr<CudaApi> api_;
  const CudaEventHandle event_;
};

// An event in a stream that is captured in a graph. Asking CUDA whether it has happened would break
// the capture; and the host need not wait for work that was only captured.
class CapturedEvent final : public NativeCudaEvent {
 public:
  CapturedEvent(std::shared_ptr<CudaApi> api, CudaStream stream) : event_(std::move(api), stream) {}

  bool happened() override { return true; }
  void wait() override {}
  CudaEventHandle handle() const override { return event_.handle(); }

 private:
  const CudaEvent event_;
};

}  // namespace horon::ops
