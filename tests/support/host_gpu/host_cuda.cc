#include "horon/tests/support/host_gpu/host_cuda.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/tests/support/host_gpu/move_on_host.h"

namespace horon::test {
namespace {

// One recording of an event. A stream that waits for an earlier recording goes on waiting for that
// one.
using Moment = std::shared_ptr<std::atomic<bool>>;

struct HostEvent {
  std::mutex mutex;
  Moment moment = std::make_shared<std::atomic<bool>>(true);
  bool is_captured = false;
  std::weak_ptr<HostGraph> graph;  // in which it was recorded
  HostGraph::Point point;          // of the graph
};

// Has no destructor: a thread's variables are destroyed before the functions of atexit() run, and
// shutdown() is one of those.
class DeviceStack {
 public:
  int& back() { return devices_[depth_]; }
  void push_back(int device) {
    HORON_CHECK(depth_ + 1 < devices_.size(), "so many guards in each other");
    devices_[++depth_] = device;
  }
  void pop_back() { --depth_; }

 private:
  std::array<int, 16> devices_ = {0};
  size_t depth_ = 0;
};
thread_local DeviceStack current_devices;
thread_local int capture_mode_of_thread = 0;

HostEvent& event_of(ops::CudaEventHandle handle) { return *static_cast<HostEvent*>(handle); }

struct Recorded {
  Moment moment;
  bool is_captured;
  std::shared_ptr<HostGraph> graph;  // null: it was destroyed, or there was none
  HostGraph::Point point;
};
Recorded recorded(ops::CudaEventHandle handle) {
  const HostEvent& event = event_of(handle);
  const std::lock_guard lock(event_of(handle).mutex);
  return {event.moment, event.is_captured, event.graph.lock(), event.point};
}

// The moment of the event. To ask for it breaks a capture in which the event was recorded.
Moment moment_of(ops::CudaEventHandle handle) {
  const Recorded asked = recorded(handle);
  if (!asked.is_captured) return asked.moment;
  if (asked.graph != nullptr) asked.graph->fail("an event was asked for");
  throw Error(ErrorCode::OperationFailed, "the event was recorded in a capture");
}

[[noreturn]] void fail_capture(HostGraph& graph, const char* why) {
  graph.fail(why);
  throw Error(ErrorCode::OperationFailed, why);
}

}  // namespace

struct HostCuda::State {
  explicit State(Options given) : options(given), random(given.seed) {}

  void begin_work(ops::CudaStream stream) {
    int delay = 0;
    {
      const std::lock_guard lock(mutex);
      if (started++ == options.fails_at) failed = true;
      delay = std::uniform_int_distribution<int>(0, options.delay_us_max)(random);
      if (slow_us > 0 && is_slow(stream)) delay += slow_us;
    }
    if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  }

  const Options options;
  std::mutex mutex;
  std::mt19937 random;
  int64_t started = 0;
  std::function<bool(ops::CudaStream)> is_slow;
  int slow_us = 0;
  std::atomic<bool> failed{false};
  std::atomic<int> host_waits{0};
  std::atomic<int64_t> pending{0};  // pieces of work
  std::map<const std::byte*, size_t> given_out;
  size_t given_out_bytes = 0, given_out_max = 0;
};

struct HostCuda::Stream {
  explicit Stream(std::shared_ptr<State> device)
      : state(std::move(device)), thread([this] { serve(); }) {}

  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      closed = true;
    }
    changed.notify_all();
    thread.join();
  }

  // Runs on the thread of the stream. The work of a stream that is closed is still done.
  void serve() {
    for (;;) {
      std::function<bool()> kernel;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return closed || !kernels.empty(); });
        if (kernels.empty()) return;
        kernel = std::move(kernels.front());
        kernels.pop_front();
      }
      state->begin_work(this);
      while (!state->failed && !kernel()) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      --state->pending;
    }
  }

  // Called under the mutex. The graph that captures work of this stream; null: none, work is
  // enqueued and done.
  std::shared_ptr<HostGraph> capture() const {
    std::shared_ptr<HostGraph> open = graph.lock();
    return open == nullptr || open->has_ended() ? nullptr : open;
  }

  const std::shared_ptr<State> state;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<bool()>> kernels;
  bool closed = false;
  std::weak_ptr<HostGraph> graph;
  std::shared_ptr<HostGraph> begun;  // in the stream of begin_capture(): the graph, until it ends
  HostGraph::Point point;            // after all that was captured in this stream
  std::thread thread;                // the last member: it uses the others
};

HostCuda::HostCuda(int device, Options options)
    : device_(device), state_(std::make_shared<State>(options)) {}

HostCuda::~HostCuda() = default;

void HostCuda::slow_down(std::function<bool(ops::CudaStream)> is_slow, int us) {
  const std::lock_guard lock(state_->mutex);
  state_->is_slow = std::move(is_slow);
  state_->slow_us = us;
}

ops::CudaStream HostCuda::create_stream() { return new Stream(state_); }

void HostCuda::destroy_stream(ops::CudaStream stream) noexcept {
  delete static_cast<Stream*>(stream);
}

void HostCuda::enqueue(ops::CudaStream stream, std::function<bool()> kernel) {
  if (state_->failed) throw Error(ErrorCode::OperationFailed, "the device of threads has failed");
  auto& queue = *static_cast<Stream*>(stream);
  {
    const std::lock_guard lock(queue.mutex);
    if (const auto graph = queue.capture()) {
      queue.point = graph->add(std::move(kernel), queue.point);
      return;
    }
    ++state_->pending;
    queue.kernels.push_back(std::move(kernel));
  }
  queue.changed.notify_all();
}

ops::CudaEventHandle HostCuda::create_event() { return new HostEvent; }
void HostCuda::destroy_event(ops::CudaEventHandle event) noexcept {
  delete static_cast<HostEvent*>(event);
}

void HostCuda::record(ops::CudaEventHandle event, ops::CudaStream stream) {
  auto& queue = *static_cast<Stream*>(stream);
  {
    const std::scoped_lock locks(queue.mutex, event_of(event).mutex);
    const std::shared_ptr<HostGraph> graph = queue.capture();
    event_of(event).is_captured = graph != nullptr;
    event_of(event).graph = graph;
    event_of(event).point = queue.point;
    if (graph != nullptr) return;
  }
  const auto moment = std::make_shared<std::atomic<bool>>(false);
  {
    const std::lock_guard lock(event_of(event).mutex);
    event_of(event).moment = moment;
  }
  enqueue(stream, [moment] {
    *moment = true;
    return true;
  });
}

void HostCuda::wait_in(ops::CudaStream stream, ops::CudaEventHandle event) {
  const Recorded awaited = recorded(event);
  auto& queue = *static_cast<Stream*>(stream);
  {
    const std::lock_guard lock(queue.mutex);
    const std::shared_ptr<HostGraph> graph = queue.capture();
    if (!awaited.is_captured && graph != nullptr) {
      fail_capture(*graph, "a captured stream waits for what is not captured");
    }
    if (awaited.is_captured) {
      if (awaited.graph == nullptr || awaited.graph->has_ended()) {
        throw Error(ErrorCode::OperationFailed, "the event belongs to a capture that has ended");
      }
      if (graph != nullptr && graph != awaited.graph) {
        fail_capture(*graph, "one capture waits for another one");
      }
      if (graph == nullptr) queue.point.clear();
      queue.graph = awaited.graph;
      if (!state_->options.loses_waits)
        queue.point.insert(awaited.point.begin(), awaited.point.end());
      return;
    }
  }
  if (state_->options.loses_waits) return;
  enqueue(stream, [moment = awaited.moment] { return moment->load(); });
}

void HostCuda::begin_capture(ops::CudaStream stream) {
  auto& queue = *static_cast<Stream*>(stream);
  const std::lock_guard lock(queue.mutex);
  HORON_CHECK(queue.capture() == nullptr, "the stream is captured already");
  queue.begun = std::make_shared<HostGraph>();
  queue.graph = queue.begun;
  queue.point.clear();
}

std::shared_ptr<HostGraph> HostCuda::end_capture(ops::CudaStream stream) {
  auto& queue = *static_cast<Stream*>(stream);
  const std::lock_guard lock(queue.mutex);
  std::shared_ptr<HostGraph> graph = std::move(queue.begun);
  HORON_CHECK(graph != nullptr, "no capture has begun in the stream");
  graph->end(queue.point);
  return graph;
}

bool HostCuda::is_captured(ops::CudaStream stream) {
  auto& queue = *static_cast<Stream*>(stream);
  const std::lock_guard lock(queue.mutex);
  return queue.capture() != nullptr;
}

void HostCuda::launch(std::shared_ptr<HostGraph> graph, ops::CudaStream stream) {
  unsigned seed = 0;
  {
    const std::lock_guard lock(state_->mutex);
    seed = static_cast<unsigned>(state_->random());
  }
  enqueue(stream, HostGraph::one_launch(std::move(graph), seed));
}

void HostCuda::refuse_in_capture(ops::CudaStream stream, const char* what) const {
  auto& queue = *static_cast<Stream*>(stream);
  const std::lock_guard lock(queue.mutex);
  if (const auto graph = queue.capture()) fail_capture(*graph, what);
}

void HostCuda::note_unsafe_call() {
  if (capturing_ && capture_mode() != kStaysOutOfCaptures) ++broken_captures_;
}

bool HostCuda::happened(ops::CudaEventHandle event) {
  note_unsafe_call();
  if (state_->failed) throw Error(ErrorCode::OperationFailed, "the device of threads has failed");
  return *moment_of(event);
}

void HostCuda::wait_on_host(ops::CudaEventHandle event) {
  ++state_->host_waits;
  while (!happened(event)) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

std::byte* HostCuda::allocate(size_t bytes) {
  note_unsafe_call();
  constexpr size_t kAlignment = 256;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw Error(ErrorCode::Limit, "no memory on the device of threads");
  std::memset(memory, 0xff, rounded);
  return static_cast<std::byte*>(memory);
}

void HostCuda::free(std::byte* memory) noexcept {
  while (state_->pending > 0 && !state_->failed) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  std::free(memory);
}

// A node of the graph would give the memory out, and another one would have to take it back.
std::byte* HostCuda::allocate_in(ops::CudaStream stream, size_t bytes) {
  refuse_in_capture(stream, "memory of a capture is asked for");
  std::byte* const memory = allocate(bytes);
  const std::lock_guard lock(state_->mutex);
  state_->given_out[memory] = bytes;
  state_->given_out_bytes += bytes;
  state_->given_out_max = std::max(state_->given_out_max, state_->given_out_bytes);
  return memory;
}

void HostCuda::free_in(ops::CudaStream stream, std::byte* memory) noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->given_out_bytes -= state_->given_out.extract(memory).mapped();
  }
  try {
    refuse_in_capture(stream, "memory of a capture is given back");
    enqueue(stream, [memory] {
      std::free(memory);
      return true;
    });
  } catch (...) {  // the device has failed, and may still write there
    core::keep_for_ever({memory, [](std::byte* kept) { std::free(kept); }});
  }
}

void HostCuda::use() const { current_devices.back() = device_; }

bool HostCuda::enter() const {
  if (current_devices.back() == device_) return false;
  current_devices.push_back(device_);
  return true;
}

void HostCuda::leave() const noexcept { current_devices.pop_back(); }
int HostCuda::current_device() { return current_devices.back(); }
int HostCuda::capture_mode() { return capture_mode_of_thread; }

int HostCuda::exchange_capture_mode(int mode) noexcept {
  return std::exchange(capture_mode_of_thread, mode);
}

void HostCuda::launch(const ops::MoveLaunch& launch, ops::CudaStream stream) {
  ++launches_;
  enqueue(stream, [launch] {
    run_on_host(launch);
    return true;
  });
}

void HostCuda::wait_for_all_work() const {
  while (state_->pending > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

std::byte* HostCuda::allocate_pinned(size_t bytes) {
  note_unsafe_call();
  wait_for_all_work();
  return allocate(bytes);
}

void HostCuda::free_pinned(std::byte* memory) noexcept {
  note_unsafe_call();
  wait_for_all_work();
  free(memory);
}

void HostCuda::copy(std::byte* to, const std::byte* from, size_t bytes, ops::CudaStream stream) {
  enqueue(stream, [to, from, bytes] {
    std::memcpy(to, from, bytes);
    return true;
  });
}

size_t HostCuda::given_out_max() const {
  const std::lock_guard lock(state_->mutex);
  return state_->given_out_max;
}

int HostCuda::host_waits() const { return state_->host_waits; }
void HostCuda::fail() { state_->failed = true; }

}  // namespace horon::test
