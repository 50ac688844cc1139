#include "horon/tests/torch_bindings/host_gpu/torch_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "horon/core/base/error.h"

namespace horon::test {
namespace {

constexpr int kDevicesMax = 4;

struct Device {
  std::shared_ptr<HostCuda> cuda;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
  std::mutex mutex;
  std::deque<ops::CudaStream> streams;  // the number of a stream is its place; 0 is the default one
  std::vector<c10::Stream> pool;        // of LibTorch's; their turn comes again and again
  size_t pool_turn = 0;
  ops::CudaStream reclaims = nullptr;  // memory that several streams have used
};

struct Devices {
  std::vector<std::unique_ptr<Device>> all;
  std::atomic<int> host_waits{0};
  std::atomic<bool> hidden{false};
  std::atomic<Fault> fault{Fault::None};
  std::mutex events_mutex;
  std::map<void*, c10::DeviceIndex> device_of_event;
};

// On the heap for ever: LibTorch frees tensors while the process ends.
Devices& devices() {
  static auto& of_process = *new Devices;
  return of_process;
}

Device& device_at(int index) {
  Devices& known = devices();
  TORCH_CHECK(index >= 0 && static_cast<size_t>(index) < known.all.size(), "no device ", index);
  return *known.all[static_cast<size_t>(index)];
}

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevicesMax> current_streams = {};

c10::StreamId& current_stream(int device) { return current_streams[static_cast<size_t>(device)]; }

ops::CudaStream native(const c10::Stream& stream) {
  Device& device = device_at(stream.device_index());
  const std::lock_guard lock(device.mutex);
  return device.streams.at(static_cast<size_t>(stream.id()));
}

c10::Stream make_stream(Device& device, c10::DeviceIndex index) {
  ops::CudaStream const made = device.cuda->create_stream();
  const std::lock_guard lock(device.mutex);
  device.streams.push_back(made);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, index),
                     static_cast<c10::StreamId>(device.streams.size() - 1));
}

c10::Stream stream_of_pool(Device& device, c10::DeviceIndex index) {
  constexpr size_t kPoolStreams = 3;
  static std::mutex growing;
  const std::lock_guard lock(growing);
  if (device.pool.size() < kPoolStreams) device.pool.push_back(make_stream(device, index));
  return device.pool[device.pool_turn++ % device.pool.size()];
}

c10::Stream current(int device) {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)),
                     current_stream(device));
}

void drain(const c10::Stream& stream);
void note_reader(const c10::DataPtr& data, ops::CudaStream reader);

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {c10::kCUDA, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return current(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return make_stream(device_at(device.index()), device.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    return stream_of_pool(device_at(device.index()), device.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current(stream.device_index());
    current_stream(stream.device_index()) = stream.id();
    return before;
  }
  void* getStreamNativeHandle(c10::Stream stream) const override { return native(stream); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    HostCuda& cuda = *device_at(stream.device_index()).cuda;
    if (*event == nullptr) {
      *event = cuda.create_event();
      const std::lock_guard lock(devices().events_mutex);
      devices().device_of_event[*event] = stream.device_index();
    }
    if (devices().fault == Fault::LosesRecords) return;  // a new event has happened
    cuda.record(*event, native(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr || devices().fault == Fault::LosesWaits) return;
    device_at(stream.device_index()).cuda->wait_in(native(stream), event);
  }
  // A thread that has chosen no device makes a context on GPU 0 so, wherever the event is.
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    {
      const std::lock_guard lock(devices().events_mutex);
      TORCH_CHECK(devices().device_of_event.at(event) == current_device,
                  "an event of another device is queried");
    }
    return device_at(0).cuda->happened(event);
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    if (event == nullptr) return;
    {
      const std::lock_guard lock(devices().events_mutex);
      devices().device_of_event.erase(event);
    }
    devices().all.front()->cuda->destroy_event(event);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    ++devices().host_waits;
    while (!queryEvent(event)) std::this_thread::yield();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    ++devices().host_waits;
    drain(stream);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    note_reader(data, native(stream));
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(devices().hidden ? 0 : devices().all.size());
  }
};

const Guard& guard() {
  static const auto& of_process = *new Guard;
  return of_process;
}

void drain(const c10::Stream& stream) {
  HostCuda& cuda = *device_at(stream.device_index()).cuda;
  ops::CudaEventHandle const event = cuda.create_event();
  cuda.record(event, native(stream));
  while (!cuda.happened(event)) std::this_thread::sleep_for(std::chrono::microseconds(20));
  cuda.destroy_event(event);
}

// As LibTorch's own allocator: memory belongs to the stream that was the current one when it was
// asked for, and is free when that stream, and those that were noted as its readers, have come to
// where it was given back. It holds NaN when it is new and when it is free, so that a read at such
// a time is found out.
struct Block {
  std::byte* memory;
  size_t bytes;
  int device;
  ops::CudaStream stream;
  std::mutex mutex = {};
  std::vector<ops::CudaStream> readers = {};
};

void release_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  HostCuda& cuda = *device_at(block->device).cuda;
  ops::CudaStream last = block->stream;
  if (!block->readers.empty()) {
    // Its own stream does not wait for the readers: a missing order must not be hidden.
    block->readers.push_back(block->stream);
    last = device_at(block->device).reclaims;
    for (ops::CudaStream const reader : block->readers) {
      ops::CudaEventHandle const has_read = cuda.create_event();
      cuda.record(has_read, reader);
      cuda.wait_in(last, has_read);
      cuda.destroy_event(has_read);
    }
  }
  cuda.enqueue(last, [memory = block->memory, bytes = block->bytes] {
    std::memset(memory, 0xff, bytes);
    std::free(memory);
    return true;
  });
}

void note_reader(const c10::DataPtr& data, ops::CudaStream reader) {
  if (data.get_deleter() != &release_block) return;
  auto& block = *static_cast<Block*>(data.get_context());
  const std::lock_guard lock(block.mutex);
  block.readers.push_back(reader);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kCUDA, current_device);
    if (bytes == 0) return {nullptr, device};
    auto* const memory = device_at(current_device).cuda->allocate(bytes);
    auto* const block = new Block{memory, bytes, current_device, native(current(current_device))};
    return {memory, block, &release_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    drain(current(current_device));
    std::memcpy(to, from, bytes);
  }
};

Allocator& allocator() {
  static auto& of_process = *new Allocator;
  return of_process;
}

}  // namespace

void install_torch_device(std::vector<std::shared_ptr<HostCuda>> cudas) {
  HORON_CHECK(devices().all.empty() && cudas.size() <= kDevicesMax, "installed once");
  for (std::shared_ptr<HostCuda>& cuda : cudas) {
    auto device = std::make_unique<Device>();
    device->cuda = std::move(cuda);
    device->streams.push_back(device->cuda->create_stream());
    device->reclaims = device->cuda->create_stream();
    devices().all.push_back(std::move(device));
  }
  c10::impl::registerDeviceGuard(c10::kCUDA, &guard());
  c10::SetAllocator(c10::kCUDA, &allocator());
}

void hide_torch_devices(bool hidden) { devices().hidden = hidden; }

int torch_host_waits() { return devices().host_waits; }
void count_torch_host_wait() { ++devices().host_waits; }

c10::Stream new_stream(int device) {
  return make_stream(device_at(device), static_cast<c10::DeviceIndex>(device));
}

void enqueue_in_current_stream(std::function<void()> work, int device) {
  device_at(device).cuda->enqueue(native(current(device)),
                                  [work = std::move(work)] { return work(), true; });
}

void drain_current_stream(int device) { drain(current(device)); }

const at::Generator& generator_of(int device) {
  return device_at(device < 0 ? current_device : device).generator;
}

void plant(Fault fault, int us) {
  devices().fault = fault;
  for (const auto& device : devices().all) {
    const std::lock_guard lock(device->mutex);
    const auto is_slow = [streams = device->streams, fault](ops::CudaStream stream) {
      const bool is_of_torch = std::find(streams.begin(), streams.end(), stream) != streams.end();
      return is_of_torch == (fault == Fault::LosesRecords);
    };
    device->cuda->slow_down(is_slow, us);
  }
}

}  // namespace horon::test

namespace at {

// Says that there is a CUDA device: autograd then keeps the streams of forward operations.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs /*none*/) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex /*device*/) const override { return true; }
  const Generator& getDefaultGenerator(DeviceIndex device) const override {
    return horon::test::generator_of(device);
  }
};
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
