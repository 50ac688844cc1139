// CUDA itself. One file of two is built (ops/CMakeLists.txt): with CUDA, or without it.
#pragma once

#include <memory>
#include <string>

#include "horon/ops/cuda/cuda_api.h"

namespace horon::ops {

struct CudaStatus {
  int devices = 0;          // that this process may use
  std::string unavailable;  // why there are none: "built without CUDA", "no NVIDIA driver"
  int driver_version = 0;   // the newest CUDA that the driver can run: 13000
  int runtime_version = 0;  // of the CUDA that Horon was built with; 0: built without
};

// Asks the driver, once; makes no context on a device. Never throws. Any thread.
const CudaStatus& cuda_status();

// The device's place on the PCI bus of this host: "0000:3B:00.0". Makes no context. Throws Error.
std::string bus_of_cuda_device(int device);

// Whether the stream is being captured in a graph, so that its work does not happen now. Any
// thread.
bool is_captured(CudaStream stream) noexcept;

// Makes the context of the device, if the program has not, and loads all kernels, so that none is
// loaded while a collective waits for another rank. Throws Error(Config) if there is no such
// device.
std::shared_ptr<CudaApi> open_cuda(int device);

}  // namespace horon::ops
