// The calls of CUDA that Horon makes, as one narrow interface: the real ones, or a host that does
// the same with threads, so that all that is built on them runs in tests on any machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "horon/ops/cuda/move.h"

namespace horon::ops {

// Opaque: a cudaStream_t, a cudaEvent_t.
using CudaStream = void*;
using CudaEventHandle = void*;

// For one device: each call makes it the calling thread's current device while the call lasts. A
// failure throws Error(OperationFailed) with the name of the call and CUDA's own text. Any thread.
class CudaApi {
 public:
  virtual ~CudaApi() = default;
  virtual int device() const = 0;
  virtual std::string device_name() const = 0;  // "NVIDIA H100 80GB HBM3"
  // Makes it the current device of the calling thread, for good.
  virtual void use() const = 0;
  // The same until leave(); see CudaDeviceGuard. False: it was the current one before, and leave()
  // must not be called.
  virtual bool enter() const = 0;
  virtual void leave() const noexcept = 0;

  // Non-blocking (the legacy default stream does not wait for it), with the highest priority: a
  // late collective holds back all ranks.
  virtual CudaStream create_stream() = 0;
  // Work that is in it still happens.
  virtual void destroy_stream(CudaStream stream) noexcept = 0;
  // Without timing.
  virtual CudaEventHandle create_event() = 0;
  virtual void destroy_event(CudaEventHandle event) noexcept = 0;
  virtual void record(CudaEventHandle event, CudaStream stream) = 0;
  // Work that is enqueued from now on runs after the work that the event was recorded behind.
  virtual void wait_in(CudaStream stream, CudaEventHandle event) = 0;
  virtual bool happened(CudaEventHandle event) = 0;
  // Blocks this thread.
  virtual void wait_on_host(CudaEventHandle event) = 0;

  // 256-byte aligned memory of the device. Never null for bytes > 0; throws Error(Limit) if there
  // is none.
  virtual std::byte* allocate(size_t bytes) = 0;
  // Waits for all work of the device.
  virtual void free(std::byte* memory) noexcept = 0;
  // The same in the order of a stream, without waiting for the device: work enqueued after the
  // first call may use the memory, work enqueued after the second may not.
  virtual std::byte* allocate_in(CudaStream stream, size_t bytes) = 0;
  virtual void free_in(CudaStream stream, std::byte* memory) noexcept = 0;

  // Pinned host memory, which kernels reach at the same address. Never null for bytes > 0; throws
  // Error(Limit) if there is none. Free it only when no work uses it.
  virtual std::byte* allocate_pinned(size_t bytes) = 0;
  virtual void free_pinned(std::byte* memory) noexcept = 0;

  virtual void launch(const MoveLaunch& launch, CudaStream stream) = 0;
  // Copies one stretch between memory of the device and of the host by a copy engine: a kernel
  // would occupy processors of the device for as long as the bus takes.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes, CudaStream stream) = 0;

  // Sets how the calling thread treats graph captures of other threads, as a cudaStreamCaptureMode:
  // in a new thread calls such as happened() break them. Returns the mode before.
  static constexpr int kStaysOutOfCaptures = 2;  // cudaStreamCaptureModeRelaxed
  virtual int exchange_capture_mode(int mode) noexcept = 0;
  // For a thread of Horon's own: it works on this device and breaks nobody's captures.
  void use_in_own_thread() {
    use();
    (void)exchange_capture_mode(kStaysOutOfCaptures);
  }
};

// For calls of libraries that work on the thread's current device. Afterwards a thread of the
// program has its own device back.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(const CudaApi& cuda) : cuda_(cuda), entered_(cuda.enter()) {}
  ~CudaDeviceGuard() {
    if (entered_) cuda_.leave();
  }
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  const CudaApi& cuda_;
  const bool entered_;
};

}  // namespace horon::ops
