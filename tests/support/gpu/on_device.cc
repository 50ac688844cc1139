#include "horon/tests/support/gpu/on_device.h"

#include <bit>
#include <numeric>

#include "horon/ops/cuda/cuda_memory.h"

namespace horon::test {
namespace {

constexpr size_t kMargin = 32;
constexpr size_t kLead = 64;  // bytes before the data, for the margin and a shift

int64_t sum(const core::BlockCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

struct Extent {
  size_t input;
  size_t output;
};

Extent bytes_of(const core::Batch& batch) {
  const size_t size = size_of(batch.dtype);
  const bool sends_blocks = !batch.send_counts.empty();
  const bool receives_blocks = !batch.receive_counts.empty();
  const int64_t input = sends_blocks ? sum(batch.send_counts) : batch.count;
  const int64_t output = receives_blocks ? sum(batch.receive_counts) : batch.count;
  return {static_cast<size_t>(input) * size, static_cast<size_t>(output) * size};
}

class Flight final : public core::InFlight {
 public:
  Flight(core::CollectiveOp& op, Gpu& gpu, DevicePool& pool, const core::Batch& batch)
      : gpu_(gpu),
        pool_(pool),
        host_(batch),
        bytes_(bytes_of(batch)),
        in_place_(batch.input >= batch.output && batch.input <= batch.output + bytes_.output &&
                  batch.input + bytes_.input <= batch.output + bytes_.output),
        stream_(static_cast<ops::CudaQueue*>(batch.queue)->stream()) {
    core::Batch on_device = batch;
    output_ = place(output_memory_, bytes_.output, batch.output);
    on_device.output = output_;
    gpu_.cuda()->copy(output_ - kMargin, host_.output - kMargin, bytes_.output + 2 * kMargin,
                      stream_);
    if (in_place_) {
      input_ = output_ + (batch.input - batch.output);
    } else {
      input_ = place(input_memory_, bytes_.input, batch.input);
      if (bytes_.input > 0) gpu_.cuda()->copy(input_, host_.input, bytes_.input, stream_);
    }
    on_device.input = input_;
    inner_ = op.start(on_device);
  }

  ~Flight() override {
    for (std::byte* memory : {input_memory_, output_memory_}) {
      if (memory != nullptr) pool_.give_back(memory);
    }
  }

  core::Progress step() override {
    const core::Progress progress = inner_->step();
    if (progress == core::Progress::Done) copy_back();
    return progress;
  }
  void watch() override { inner_->watch(); }

 private:
  // The place has the same offset from a 16-byte boundary as the host's.
  std::byte* place(std::byte*& memory, size_t bytes, const std::byte* like) {
    memory = pool_.take(bytes + 2 * kLead);
    return memory + kLead + reinterpret_cast<uintptr_t>(like) % 16;
  }

  void copy_back() {
    gpu_.cuda()->copy(host_.output - kMargin, output_ - kMargin, bytes_.output + 2 * kMargin,
                      stream_);
    if (in_place_ || bytes_.input == 0) return;
    gpu_.cuda()->copy(const_cast<std::byte*>(host_.input), input_, bytes_.input, stream_);
  }

  Gpu& gpu_;
  DevicePool& pool_;
  const core::Batch host_;
  const Extent bytes_;
  const bool in_place_;
  const ops::CudaStream stream_;
  std::byte* output_memory_ = nullptr;
  std::byte* input_memory_ = nullptr;
  std::byte* output_ = nullptr;
  std::byte* input_ = nullptr;
  std::unique_ptr<core::InFlight> inner_;
};

}  // namespace

DevicePool::~DevicePool() {
  for (const auto& [memory, size] : size_of_) cuda_->free(memory);
}

std::byte* DevicePool::take(size_t bytes) {
  const size_t size = std::bit_ceil(bytes);
  std::vector<std::byte*>& free = free_[size];
  if (free.empty()) {
    std::byte* const memory = cuda_->allocate(size);
    size_of_[memory] = size;
    return memory;
  }
  std::byte* const memory = free.back();
  free.pop_back();
  return memory;
}

std::unique_ptr<core::InFlight> OnDevice::start(core::Batch batch) {
  return std::make_unique<Flight>(op_, gpu_, pool_, batch);
}

}  // namespace horon::test
