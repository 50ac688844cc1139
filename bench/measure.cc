#include "horon/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "horon/bench/statistics.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A call of a smaller message is too short for the clock.
constexpr int64_t kSingleCallBytes = 64 << 10;

int calls_per_sample(int64_t bytes, DeviceKind device) {
  // The host's part of a call shall hide behind the device's part of those before.
  if (device == DeviceKind::Cuda) {
    return static_cast<int>(std::clamp<int64_t>((256 << 20) / bytes, 4, 20));
  }
  return static_cast<int>(std::clamp<int64_t>(kSingleCallBytes / bytes, 1, 16));
}

// The tensors of a call. They lie in memory in the reverse order, since tensors of a program are
// not neighbours either.
std::vector<CallEntry> entries_of(const Options& options, const std::string& name,
                                  const core::EntrySpec& whole) {
  const int64_t count = whole.parts.front().shape.front();
  const int64_t tensors = std::min<int64_t>(options.tensors, count);
  std::vector<CallEntry> entries;
  core::EntrySpec spec = whole;
  spec.parts.clear();
  std::vector<Stretch> stretches;
  for (int64_t i = tensors; i-- > 0;) {
    const int64_t begin = i * count / tensors;
    const int64_t part = (i + 1) * count / tensors - begin;
    spec.parts.push_back({core::concat(name, ".", i), {part}});
    stretches.push_back({begin, part});
    if (options.calling == Calling::Group && i > 0) continue;
    entries.push_back({spec.parts.front().name,
                       std::make_shared<const core::EntrySpec>(std::exchange(spec, whole)),
                       std::exchange(stretches, {})});
    spec.parts.clear();
  }
  return entries;
}

std::shared_ptr<std::byte> private_memory(size_t bytes) {
  constexpr std::align_val_t line{64};
  return {static_cast<std::byte*>(::operator new(bytes, line)),
          [](std::byte* data) { ::operator delete(data, line); }};
}

}  // namespace

std::shared_ptr<ops::JobGpu> gpu_of_rank() {
  auto gpu = ops::gpu();
  if (gpu == nullptr || !gpu->available()) {
    throw Error(ErrorCode::Config,
                core::concat("--device cuda: ", gpu == nullptr ? "no GPU" : gpu->unavailable()));
  }
  return gpu;
}

struct Measurement::Buffers {
  // Calls in place use the output as input too.
  std::shared_ptr<std::byte> input;
  std::shared_ptr<std::byte> output;
  std::shared_ptr<std::byte> peer_input;
  std::shared_ptr<std::byte> peer_output;
};

Measurement::Measurement(const Options& options, core::Runtime& runtime, MpiPeer& mpi)
    : options_(options),
      case_(find_case(options.collective)),
      runtime_(runtime),
      mpi_(mpi),
      mine_(TestData(options.dtype, options.op, size()).of_rank(rank())),
      expected_(case_.expected(TestData(options.dtype, options.op, size()), size(), options.root)),
      buffers_(std::make_unique<Buffers>()) {
  const Shape largest = case_.shape(options.bytes_max, options.dtype, size());
  const auto bytes = static_cast<size_t>(largest.message_bytes);
  if (options.device == DeviceKind::Cuda) {
    gpu_ = gpu_of_rank();
    gpu_memory_ = open_gpu_memory(gpu_->cuda());
    staging_.resize(bytes);
    buffers_->input = gpu_memory_->allocate(bytes);
    buffers_->output = gpu_memory_->allocate(bytes);
    return;
  }
  const auto allocate = [&](bool registered) {
    std::shared_ptr<std::byte> memory =
        registered ? ops::allocate_host(bytes) : private_memory(bytes);
    std::memset(memory.get(), 1, bytes);
    return memory;
  };
  buffers_->input = allocate(options.registered);
  buffers_->output = allocate(options.registered);
  if (!options.peer) return;
  buffers_->peer_input = allocate(false);
  buffers_->peer_output = allocate(false);
}

Measurement::~Measurement() = default;

Row Measurement::run(int64_t bytes) {
  Row row;
  row.shape = case_.shape(bytes, options_.dtype, size());
  row.out_of_place = run_placement(row.shape, false);
  if (case_.has_in_place) row.in_place = run_placement(row.shape, true);
  return row;
}

Placement Measurement::run_placement(const Shape& shape, bool in_place) {
  const Call ours = make_call(shape, in_place, false);
  const Call theirs = make_call(shape, in_place, true);
  const int calls = calls_per_sample(shape.message_bytes, options_.device);
  Placement result;
  std::vector<double> samples;
  std::vector<double> peer_samples;
  for (int i = -options_.warmup_iters; i < options_.iters; ++i) {
    const auto time_ours = [&] {
      const bool checked = options_.check && (i < 0 || i == options_.iters - 1);
      if (gpu_ != nullptr && checked) {
        // Only after one call in place the result is known.
        (void)time_on_gpu(ours, 1);
        result.wrong += check(ours);
      }
      const double sample = gpu_ != nullptr ? time_on_gpu(ours, calls)
                                            : time_once(ours, &Measurement::run_horon, calls);
      if (gpu_ == nullptr && checked) result.wrong += check(ours);
      if (i >= 0) samples.push_back(sample);
    };
    const auto time_theirs = [&] {
      if (!options_.peer) return;
      const double sample = time_once(theirs, &Measurement::run_peer, calls);
      if (i >= 0) peer_samples.push_back(sample);
    };
    if (i % 2 == 0) time_theirs();
    time_ours();
    if (i % 2 != 0) time_theirs();
  }
  result.wrong = mpi_.sum(result.wrong);
  result.horon = summarize(samples);
  if (options_.peer) result.peer = summarize(peer_samples);
  return result;
}

Call Measurement::make_call(const Shape& shape, bool in_place, bool peer) const {
  core::EntrySpec spec;
  spec.kind = case_.kind;
  spec.device = options_.device;
  spec.dtype = options_.dtype;
  spec.reduce_op = options_.op;
  spec.root = options_.root;
  spec.parts = {{"", {shape.input_count}}};
  Call call;
  const std::string name = core::concat("bench.", shape.message_bytes, in_place ? ".in_place" : "");
  call.async = options_.calling == Calling::Async;
  call.entries = entries_of(options_, name, spec);
  call.spec = std::make_shared<const core::EntrySpec>(std::move(spec));
  call.shape = shape;
  if (gpu_ != nullptr) call.device_index = gpu_->device();
  call.memory = std::make_shared<Buffers>(*buffers_);
  call.output = (peer ? buffers_->peer_output : buffers_->output).get();
  call.input = in_place ? call.output : (peer ? buffers_->peer_input : buffers_->input).get();
  return call;
}

double Measurement::time_once(const Call& call, Side side, int calls) {
  double rewriting_s = 0;
  if (calls > 1) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls - 1; ++i) rewrite(call);
    rewriting_s = seconds_since(begin);
  }
  rewrite(call);
  mpi_.barrier();
  const auto begin = Clock::now();
  (this->*side)(call);
  for (int i = 1; i < calls; ++i) {
    rewrite(call);
    (this->*side)(call);
  }
  return std::max(0.0, seconds_since(begin) - rewriting_s) / calls;
}

double Measurement::time_on_gpu(Call call, int calls) {
  rewrite(call);
  mpi_.barrier();
  const auto begin = Clock::now();
  for (int i = 1; i <= calls; ++i) {
    call.waits_for_device = i == calls;
    run_horon(call);
  }
  return seconds_since(begin) / calls;
}

void Measurement::rewrite(const Call& call) {
  // The const can be cast away: all inputs are buffers of this object.
  auto* const input = const_cast<std::byte*>(call.input);
  const int64_t count = call.shape.input_count;
  if (gpu_memory_ == nullptr) {
    mine_.write(input, count, ++offset_);
    return;
  }
  mine_.write(staging_.data(), count, ++offset_);
  gpu_memory_->write(input, staging_.data(), static_cast<size_t>(count) * size_of(options_.dtype));
}

const std::byte* Measurement::result_of(const Call& call) {
  if (gpu_memory_ == nullptr) return call.output;
  gpu_memory_->read(staging_.data(), call.output,
                    static_cast<size_t>(call.shape.output_count) * size_of(options_.dtype));
  return staging_.data();
}

void Measurement::run_horon(const Call& call) { case_.run(runtime_, call); }
void Measurement::run_peer(const Call& call) { case_.run_peer(mpi_, call); }

int64_t Measurement::check(const Call& call) {
  if (case_.result_at_root && rank() != options_.root) return 0;
  const auto blocks = static_cast<int64_t>(expected_.size());
  const std::byte* block = result_of(call);
  const int64_t own_begin = case_.own_part ? rank() * (call.shape.input_count / size()) : 0;
  int64_t wrong = 0;
  for (const PeriodicData& expected : expected_) {
    wrong += expected.count_wrong(block, call.shape.output_count / blocks, offset_ + own_begin);
    block += call.shape.message_bytes / blocks;
  }
  return wrong;
}

Timing Measurement::summarize(const std::vector<double>& samples) {
  const std::vector<double> slowest = mpi_.max(samples);
  return {median(slowest), *std::min_element(slowest.begin(), slowest.end()),
          percentile(slowest, 50), percentile(slowest, 99)};
}

}  // namespace horon::bench
