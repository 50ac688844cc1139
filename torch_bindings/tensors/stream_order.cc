#include "horon/torch_bindings/tensors/stream_order.h"

#include <dlfcn.h>
#include <thread>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "horon/core/base/error.h"
#include "horon/ops/cuda/cuda_event.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::torch_detail {
namespace {

const c10::impl::DeviceGuardImplInterface& guard_of(c10::Device device) {
  return *c10::impl::getDeviceGuardImpl(device.type());
}

// The CUDA stream behind a stream of LibTorch. Before 2.11 LibTorch tells it in its CUDA part
// alone, of which Horon includes nothing.
template <class Guard>
void* native_handle(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.getStreamNativeHandle(stream); }) {
    return guard.getStreamNativeHandle(stream);
  } else {
    // c10::cuda::CUDAStream, whose stream() this is, holds a c10::Stream and nothing else.
    using StreamOf = void* (*)(const c10::Stream*);
    void* const library = ::dlopen("libc10_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    HORON_CHECK(library != nullptr, "LibTorch has streams of CUDA");
    const auto stream_of =
        reinterpret_cast<StreamOf>(::dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv"));
    ::dlclose(library);  // LibTorch keeps it
    HORON_CHECK(stream_of != nullptr, "CUDAStream::stream() is where LibTorch has it");
    return stream_of(&stream);
  }
}

// An event of LibTorch's, which is a CUDA event. Some of LibTorch's calls switch to the device of
// the event and then back to the current one; the query stays on the current one. On a thread that
// has never chosen a device the current one is GPU 0, where a context would be made for nothing. So
// all calls are made while the event's own device is the current one.
class StreamEvent final : public ops::NativeCudaEvent {
 public:
  explicit StreamEvent(const c10::Stream& stream)
      : guard_(guard_of(stream.device())), device_(stream.device_index()) {
    const c10::DeviceGuard on_device(stream.device());
    guard_.record(&event_, stream, device_, c10::EventFlag::PYTORCH_DEFAULT);
  }
  ~StreamEvent() override {
    try {
      const c10::DeviceGuard on_device(c10::Device(guard_.type(), device_));
      guard_.destroyEvent(event_, device_);
    } catch (...) {  // the device is lost, and the event with it
      return;
    }
  }
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  bool happened() override {
    const c10::DeviceGuard on_device(c10::Device(guard_.type(), device_));
    return guard_.queryEvent(event_);
  }
  void wait() override {
    while (!happened()) std::this_thread::yield();
  }
  ops::CudaEventHandle handle() const override { return event_; }

 private:
  const c10::impl::DeviceGuardImplInterface& guard_;
  const c10::DeviceIndex device_;
  void* event_ = nullptr;
};

}  // namespace

DeviceKind device_in_spec(c10::Device device, uint32_t set) {
  const bool on_host = device.is_cpu() || ops::runtime().is_mixed(set, DeviceKind::Cuda);
  return on_host ? DeviceKind::Host : DeviceKind::Cuda;
}

void note_device(core::Submission& submission, c10::Device device) {
  if (device.is_cpu()) return;
  submission.device_index = device.index();
  submission.copied_to_host = submission.spec->device == DeviceKind::Host;
}

c10::Stream current_stream(c10::Device device) { return guard_of(device).getStream(device); }

bool current_stream_is_captured(c10::Device device) {
  return !device.is_cpu() && is_initialized() &&
         ops::gpu()->is_captured(native_handle(guard_of(device), current_stream(device)));
}

std::unique_ptr<core::Event> record_current_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  return std::make_unique<StreamEvent>(current_stream(device));
}

void let_current_stream_wait(c10::Device device, core::Event* event) {
  if (event == nullptr) return;
  const auto* const native = dynamic_cast<const ops::NativeCudaEvent*>(event);
  if (native == nullptr) return event->wait();
  const c10::DeviceGuard on_device(device);
  guard_of(device).block(native->handle(), current_stream(device));
}

void let_current_stream_wait(const c10::Stream& other) {
  if (other == current_stream(other.device())) return;
  StreamEvent here(other);
  let_current_stream_wait(other.device(), &here);
}

void note_current_stream(const at::Tensor& tensor) {
  note_current_stream(tensor.storage().data_ptr(), tensor.device());
}

void note_current_stream(const c10::DataPtr& memory, c10::Device device) {
  if (device.is_cpu()) return;
  guard_of(device).recordDataPtrOnStream(memory, current_stream(device));
}

StreamAside::StreamAside(c10::Device device) {
  if (!device.is_cpu()) guard_.reset_stream(guard_of(device).getStreamFromGlobalPool(device));
}

const core::Outcome& outcome_in_order(const core::HandleState& handle, c10::Device device) {
  if (device.is_cpu()) return handle.get();
  const core::Outcome& outcome = handle.get_enqueued();
  let_current_stream_wait(device, outcome.done.get());
  return outcome;
}

}  // namespace horon::torch_detail
