// Built with CUDA: its runtime is linked statically, so the process loads none but the driver,
// which need not be there.
#include "horon/ops/cuda/cuda_library.h"

#include <dlfcn.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/cuda/missing_kernels.h"
#include "horon/ops/cuda/move_kernels.h"

namespace horon::ops {
namespace {

// CUDA keeps a thread's newest error until cudaGetLastError() asks for it. The program's own calls
// must not find one of Horon's. An older error of the program's stays.
void take_back(cudaError_t error) noexcept {
  if (cudaPeekAtLastError() == error) (void)cudaGetLastError();
}

[[noreturn]] void fail(ErrorCode code, const char* call, cudaError_t error) {
  take_back(error);
  throw Error(code, core::concat("CUDA: ", call, ": ", cudaGetErrorString(error)));
}

void check(const char* call, cudaError_t error) {
  if (error != cudaSuccess) fail(ErrorCode::OperationFailed, call, error);
}

cudaStream_t as_stream(CudaStream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(CudaEventHandle event) { return static_cast<cudaEvent_t>(event); }

// Functions of the driver, which the process may not have, so they are looked up. The runtime could
// only set a device as the current one, and would make a context there if it has none.
struct ContextCalls {
  ContextCalls() {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);  // the runtime has loaded it
    look_up(driver, "cuDevicePrimaryCtxRetain", retain_primary);
    look_up(driver, "cuCtxGetCurrent", get_current);
    look_up(driver, "cuCtxPushCurrent_v2", push);
    look_up(driver, "cuCtxPopCurrent_v2", pop);
  }
  template <class Function>
  static void look_up(void* driver, const char* name, Function*& function) {
    void* const address = driver == nullptr ? nullptr : ::dlsym(driver, name);
    if (address == nullptr) fail(ErrorCode::Config, name, cudaErrorNotSupported);
    function = reinterpret_cast<Function*>(address);
  }
  CUresult (*retain_primary)(CUcontext*, CUdevice) = nullptr;
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*push)(CUcontext) = nullptr;
  CUresult (*pop)(CUcontext*) = nullptr;
};

class Cuda final : public CudaApi {
 public:
  explicit Cuda(int device) : device_(device) {
    // The driver's errors have the numbers of the runtime's.
    check("cuDevicePrimaryCtxRetain",
          static_cast<cudaError_t>(context_calls_.retain_primary(&context_, device)));
    const CudaDeviceGuard guard(*this);
    int pools = 0;
    check("cudaDeviceGetAttribute",
          cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
    has_pools_ = pools != 0;
    check("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties_, device));
    int lowest = 0;
    check("cudaDeviceGetStreamPriorityRange",
          cudaDeviceGetStreamPriorityRange(&lowest, &highest_priority_));
    check_kernels(static_cast<cudaError_t>(load_move_kernels()));
  }

  int device() const override { return device_; }
  std::string device_name() const override { return properties_.name; }

  void use() const override { check("cudaSetDevice", cudaSetDevice(device_)); }

  // What fails here is seen by the call that follows.
  bool enter() const override {
    CUcontext current = nullptr;
    (void)context_calls_.get_current(&current);
    return current != context_ && context_calls_.push(context_) == CUDA_SUCCESS;
  }
  void leave() const noexcept override {
    CUcontext popped = nullptr;
    (void)context_calls_.pop(&popped);
  }

  CudaStream create_stream() override {
    const CudaDeviceGuard guard(*this);
    cudaStream_t stream = nullptr;
    check("cudaStreamCreateWithPriority",
          cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest_priority_));
    return stream;
  }
  // At the end of the process the driver may be gone: failures then do not matter.
  void destroy_stream(CudaStream stream) noexcept override {
    const CudaDeviceGuard guard(*this);
    (void)cudaStreamDestroy(as_stream(stream));
  }
  CudaEventHandle create_event() override {
    const CudaDeviceGuard guard(*this);
    cudaEvent_t event = nullptr;
    check("cudaEventCreate", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void destroy_event(CudaEventHandle event) noexcept override {
    const CudaDeviceGuard guard(*this);
    (void)cudaEventDestroy(as_event(event));
  }
  void record(CudaEventHandle event, CudaStream stream) override {
    const CudaDeviceGuard guard(*this);
    check("cudaEventRecord", cudaEventRecord(as_event(event), as_stream(stream)));
  }
  void wait_in(CudaStream stream, CudaEventHandle event) override {
    const CudaDeviceGuard guard(*this);
    check("cudaStreamWaitEvent", cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
  }
  bool happened(CudaEventHandle event) override {
    const CudaDeviceGuard guard(*this);
    const cudaError_t state = cudaEventQuery(as_event(event));
    if (state == cudaErrorNotReady) {
      take_back(state);
      return false;
    }
    check("cudaEventQuery", state);
    return true;
  }
  void wait_on_host(CudaEventHandle event) override {
    const CudaDeviceGuard guard(*this);
    check("cudaEventSynchronize", cudaEventSynchronize(as_event(event)));
  }

  std::byte* allocate(size_t bytes) override {
    const CudaDeviceGuard guard(*this);
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaSuccess) return static_cast<std::byte*>(memory);
    const std::string call = core::concat("cudaMalloc of ", core::bytes_text(bytes));
    fail(ErrorCode::Limit, call.c_str(), error);
  }
  void free(std::byte* memory) noexcept override {
    const CudaDeviceGuard guard(*this);
    (void)cudaFree(memory);
  }

  std::byte* allocate_in(CudaStream stream, size_t bytes) override {
    if (!has_pools_) return allocate(bytes);
    const CudaDeviceGuard guard(*this);
    void* memory = nullptr;
    const cudaError_t error = cudaMallocAsync(&memory, bytes, as_stream(stream));
    if (error == cudaSuccess) return static_cast<std::byte*>(memory);
    const std::string call = core::concat("cudaMallocAsync of ", core::bytes_text(bytes));
    fail(ErrorCode::Limit, call.c_str(), error);
  }
  void free_in(CudaStream stream, std::byte* memory) noexcept override {
    if (!has_pools_) return free(memory);
    const CudaDeviceGuard guard(*this);
    (void)cudaFreeAsync(memory, as_stream(stream));
  }

  std::byte* allocate_pinned(size_t bytes) override {
    const CudaDeviceGuard guard(*this);
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
    if (error == cudaSuccess) return static_cast<std::byte*>(memory);
    const std::string call = core::concat("cudaHostAlloc of ", core::bytes_text(bytes));
    fail(ErrorCode::Limit, call.c_str(), error);
  }
  void free_pinned(std::byte* memory) noexcept override {
    const CudaDeviceGuard guard(*this);
    (void)cudaFreeHost(memory);
  }

  void launch(const MoveLaunch& launch, CudaStream stream) override {
    const CudaDeviceGuard guard(*this);
    check("launching a copy", static_cast<cudaError_t>(launch_moves(launch, stream)));
  }

  void copy(std::byte* to, const std::byte* from, size_t bytes, CudaStream stream) override {
    const CudaDeviceGuard guard(*this);
    check("cudaMemcpyAsync",
          cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)));
  }

  int exchange_capture_mode(int mode) noexcept override {
    const CudaDeviceGuard guard(*this);
    auto exchanged = static_cast<cudaStreamCaptureMode>(mode);
    (void)cudaThreadExchangeStreamCaptureMode(&exchanged);
    return exchanged;
  }

 private:
  void check_kernels(cudaError_t error) const {
    // CUDA gives one or the other for a GPU that is older than what the kernels were compiled for.
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
      take_back(error);
      throw missing_kernels(properties_.name, properties_.major, properties_.minor,
                            cudaGetErrorString(error));
    }
    check("loading the kernels", error);
  }

  const int device_;
  const ContextCalls context_calls_;
  CUcontext context_ = nullptr;  // the one that the runtime uses; never given back
  bool has_pools_ = false;
  cudaDeviceProp properties_{};
  int highest_priority_ = 0;
};

static_assert(CudaApi::kStaysOutOfCaptures == cudaStreamCaptureModeRelaxed);

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

// The runtime would make a context on the current device of this thread.
bool is_captured(CudaStream stream) noexcept {
  static const auto ask = [] {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void* const address = driver == nullptr ? nullptr : ::dlsym(driver, "cuStreamIsCapturing");
    return reinterpret_cast<decltype(&cuStreamIsCapturing)>(address);
  }();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ask != nullptr && ask(static_cast<CUstream>(stream), &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

std::shared_ptr<CudaApi> open_cuda(int device) {
  const CudaStatus& status = cuda_status();
  if (device < 0 || device >= status.devices) {
    throw Error(
        ErrorCode::Config,
        core::concat("no CUDA device ", device, ": ",
                     status.devices == 0 ? status.unavailable
                                         : core::concat("this process sees ", status.devices)));
  }
  return std::make_shared<Cuda>(device);
}

}  // namespace horon::ops
