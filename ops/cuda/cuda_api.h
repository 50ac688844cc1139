// The calls of CUDA that Horon makes, as one narrow table: the real ones, or a host that does the
// same with threads, so that all that is built on them runs in tests on any machine.
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

// Of one device: every call makes it the current one of the calling thread first. What fails throws
// Error(OperationFailed) with the text of the call and CUDA's own. Any thread.
class CudaApi {
 public:
  virtual ~CudaApi() = default;
  virtual int device() const = 0;
  virtual std::string device_name() const = 0;  // "NVIDIA H100 80GB HBM3"
  // For calls of other libraries: makes it the current device of the calling thread.
  virtual void use() const = 0;

  // Non-blocking (the legacy default stream does not wait for it), of the highest priority: a
  // collective that is late holds back all ranks.
  virtual CudaStream create_stream() = 0;
  // Work that is in it still happens.
  virtual void destroy_stream(CudaStream stream) noexcept = 0;
  // Without timing.
  virtual CudaEventHandle create_event() = 0;
  virtual void destroy_event(CudaEventHandle event) noexcept = 0;
  virtual void record(CudaEventHandle event, CudaStream stream) = 0;
  // What is enqueued from now on happens behind what the event was recorded behind.
  virtual void wait_in(CudaStream stream, CudaEventHandle event) = 0;
  virtual bool happened(CudaEventHandle event) = 0;
  // Blocks this thread.
  virtual void wait_on_host(CudaEventHandle event) = 0;

  // 256-byte aligned memory of the device. Never null for bytes > 0; throws Error(Limit) if there
  // is none.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void free(std::byte* memory) noexcept = 0;

  virtual void launch(const MoveLaunch& launch, CudaStream stream) = 0;

  // Calls of this thread from now on do not break a graph capture of another thread
  // (cudaStreamCaptureModeRelaxed).
  virtual void stay_out_of_captures() = 0;
};

}  // namespace horon::ops
