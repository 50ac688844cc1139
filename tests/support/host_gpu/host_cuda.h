// CUDA without a GPU: streams are threads, device memory is host memory, and work is late at
// random. What is built on CudaApi runs on it unchanged.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "horon/ops/cuda/cuda_api.h"
#include "horon/tests/support/host_gpu/host_graph.h"

namespace horon::test {

class HostCuda : public ops::CudaApi {
 public:
  struct Options {
    int delay_us_max = 0;  // upper limit of the random delay before each piece of work
    uint32_t seed = 1;
    bool loses_waits = false;  // a planted fault: streams do not wait for events
    int64_t fails_at = -1;     // the n-th piece of work fails, and the device for good
  };
  explicit HostCuda(int device = 0) : HostCuda(device, Options()) {}
  HostCuda(int device, Options options);
  ~HostCuda() override;

  int device() const override { return device_; }
  std::string device_name() const override { return "a device made of threads"; }
  void use() const override;
  bool enter() const override;
  void leave() const noexcept override;
  ops::CudaStream create_stream() override;
  void destroy_stream(ops::CudaStream stream) noexcept override;
  ops::CudaEventHandle create_event() override;
  void destroy_event(ops::CudaEventHandle event) noexcept override;
  void record(ops::CudaEventHandle event, ops::CudaStream stream) override;
  void wait_in(ops::CudaStream stream, ops::CudaEventHandle event) override;
  bool happened(ops::CudaEventHandle event) override;
  void wait_on_host(ops::CudaEventHandle event) override;
  // Filled with NaN, so that a read before the first write shows.
  std::byte* allocate(size_t bytes) override;
  void free(std::byte* memory) noexcept override;
  std::byte* allocate_in(ops::CudaStream stream, size_t bytes) override;
  void free_in(ops::CudaStream stream, std::byte* memory) noexcept override;
  // Both wait for all work of the device, as CUDA may.
  std::byte* allocate_pinned(size_t bytes) override;
  void free_pinned(std::byte* memory) noexcept override;
  void launch(const ops::MoveLaunch& launch, ops::CudaStream stream) override;
  void copy(std::byte* to, const std::byte* from, size_t bytes, ops::CudaStream stream) override;
  int exchange_capture_mode(int mode) noexcept override;

  // From now on each piece of work in a stream for which `is_slow` returns true begins `us`
  // microseconds later. The streams' threads call `is_slow`.
  void slow_down(std::function<bool(ops::CudaStream)> is_slow, int us);

  // The current device, and the capture mode, of the calling thread.
  static int current_device();
  static int capture_mode();
  // Says that some thread captures a graph. A call that asks for events or memory then breaks the
  // capture, unless the calling thread stays out of captures.
  void set_capturing(bool capturing) { capturing_ = capturing; }
  int broken_captures() const { return broken_captures_; }

  // Graphs. From begin_capture() on, work that comes into the stream is captured, and work that
  // comes into streams that wait for its events. end_capture() throws Error where CUDA would: if
  // something has broken the capture, or if the stream does not wait for all that was captured.
  void begin_capture(ops::CudaStream stream);
  std::shared_ptr<HostGraph> end_capture(ops::CudaStream stream);
  static bool is_captured(ops::CudaStream stream);
  void launch(std::shared_ptr<HostGraph> graph, ops::CudaStream stream);

  // Enqueues a kernel of any other kind. It is called again and again until it returns true.
  void enqueue(ops::CudaStream stream, std::function<bool()> kernel);
  // How often a thread has waited in wait_on_host().
  int host_waits() const;
  // The most that allocate_in() has given out at a time. What free_in() has been called for does
  // not count, since the next allocation in that stream may get it.
  size_t given_out_max() const;
  // The number of launches of moves.
  int launches() const { return launches_; }
  // From now on throws work away that is not done, as a reset of the device would.
  void fail();

  struct State;
  struct Stream;

 private:
  void note_unsafe_call();
  void refuse_in_capture(ops::CudaStream stream, const char* what) const;
  void wait_for_all_work() const;

  const int device_;
  std::shared_ptr<State> state_;
  std::atomic<int> launches_{0};
  std::atomic<bool> capturing_{false};
  std::atomic<int> broken_captures_{0};
};

}  // namespace horon::test
