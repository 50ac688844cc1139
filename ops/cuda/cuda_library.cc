// Built with CUDA: its runtime is linked statically, so the process loads none but the driver,
// which need not be there.
#include "horon/ops/cuda/cuda_library.h"

#include <cuda_runtime_api.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/cuda/move_kernels.h"

namespace horon::ops {
namespace {

[[noreturn]] void fail(ErrorCode code, const char* call, cudaError_t error) {
  throw Error(code, core::concat("CUDA: ", call, ": ", cudaGetErrorString(error)));
}

void check(const char* call, cudaError_t error) {
  if (error != cudaSuccess) fail(ErrorCode::OperationFailed, call, error);
}

cudaStream_t as_stream(CudaStream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(CudaEventHandle event) { return static_cast<cudaEvent_t>(event); }

class Cuda final : public CudaApi {
 public:
  explicit Cuda(int device) : device_(device) {
    use();
    check("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties_, device));
    int lowest = 0;
    check("cudaDeviceGetStreamPriorityRange",
          cudaDeviceGetStreamPriorityRange(&lowest, &highest_priority_));
    check("loading the kernels", static_cast<cudaError_t>(load_move_kernels()));
  }

  int device() const override { return device_; }
  std::string device_name() const override { return properties_.name; }

  void use() const override { check("cudaSetDevice", cudaSetDevice(device_)); }

  CudaStream create_stream() override {
    use();
    cudaStream_t stream = nullptr;
    check("cudaStreamCreateWithPriority",
          cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest_priority_));
    return stream;
  }
  // At the end of the process the driver may be gone: what fails then is of no interest.
  void destroy_stream(CudaStream stream) noexcept override {
    (void)cudaStreamDestroy(as_stream(stream));
  }
  CudaEventHandle create_event() override {
    use();
    cudaEvent_t event = nullptr;
    check("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void destroy_event(CudaEventHandle event) noexcept override {
    (void)cudaEventDestroy(as_event(event));
  }
  void record(CudaEventHandle event, CudaStream stream) override {
    use();
    check("cudaEventRecord", cudaEventRecord(as_event(event), as_stream(stream)));
  }
  void wait_in(CudaStream stream, CudaEventHandle event) override {
    use();
    check("cudaStreamWaitEvent", cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
  }
  bool happened(CudaEventHandle event) override {
    use();
    const cudaError_t state = cudaEventQuery(as_event(event));
    if (state == cudaErrorNotReady) return false;
    check("cudaEventQuery", state);
    return true;
  }
  void wait_on_host(CudaEventHandle event) override {
    use();
    check("cudaEventSynchronize", cudaEventSynchronize(as_event(event)));
  }

  std::byte* allocate(size_t bytes) override {
    use();
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaSuccess) return static_cast<std::byte*>(memory);
    (void)cudaGetLastError();
    const std::string call = core::concat("cudaMalloc of ", core::bytes_text(bytes));
    fail(ErrorCode::Limit, call.c_str(), error);
  }
  void free(std::byte* memory) noexcept override { (void)cudaFree(memory); }

  void launch(const MoveLaunch& launch, CudaStream stream) override {
    use();
    check("launching a copy",
          static_cast<cudaError_t>(launch_moves(launch, properties_.multiProcessorCount, stream)));
  }

  void stay_out_of_captures() override {
    use();
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    check("cudaThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(&mode));
  }

 private:
  const int device_;
  cudaDeviceProp properties_{};
  int highest_priority_ = 0;
};

CudaStatus ask_driver() {
  CudaStatus status;
  (void)cudaRuntimeGetVersion(&status.runtime_version);
  if (cudaDriverGetVersion(&status.driver_version) != cudaSuccess || status.driver_version == 0) {
    status.unavailable = "no NVIDIA driver";
    return status;
  }
  const cudaError_t error = cudaGetDeviceCount(&status.devices);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    status.devices = 0;
    status.unavailable = cudaGetErrorString(error);
  } else if (status.devices == 0) {
    status.unavailable = "no device (see CUDA_VISIBLE_DEVICES)";
  }
  return status;
}

}  // namespace

const CudaStatus& cuda_status() {
  static const CudaStatus status = ask_driver();
  return status;
}

std::string bus_of_cuda_device(int device) {
  char bus[32] = "";
  check("cudaDeviceGetPCIBusId", cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  return bus;
}

std::shared_ptr<CudaApi> open_cuda(int device) {
  const CudaStatus& status = cuda_status();
  if (device < 0 || device >= status.devices) {
    throw Error(ErrorCode::Config,
                core::concat("no CUDA device ", device, ": ",
                             status.devices == 0 ? status.unavailable
                                                 : core::concat("there are ", status.devices)));
  }
  return std::make_shared<Cuda>(device);
}

}  // namespace horon::ops
