#include "horon/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/narrow_type.h"
#include "horon/core/base/text.h"
#include "horon/ops/hierarchical/wire_type.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Options::seconds_max does not cut the repetitions to fewer than these.
constexpr int kLeastRepetitions = 5;
constexpr int kLeastWarmups = 4;  // until repeated calls are frozen

// A call of a smaller message is too short for the clock.
constexpr int64_t kSingleCallBytes = 64 << 10;

int calls_per_sample(int64_t bytes, DeviceKind device) {
  // Enough calls to hide the host's part of a call behind the device's part of the calls before.
  if (device == DeviceKind::Cuda) {
    return static_cast<int>(std::clamp<int64_t>((256 << 20) / bytes, 4, 20));
  }
  return static_cast<int>(
      std::clamp<int64_t>(kSingleCallBytes / std::max<int64_t>(bytes, 1), 1, 16));
}

// The tensors of a call. They lie in memory in the reverse order, since tensors of a program are
// not neighbours either.
std::vector<CallEntry> entries_of(const Options& options, const std::string& name,
                                  const core::EntrySpec& whole) {
  const int64_t count = whole.parts.front().shape.front();
  const int64_t tensors = std::clamp<int64_t>(options.tensors, 1, std::max<int64_t>(count, 1));
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

// The index of the root in the set.
int root_index(const Options& options, const ProcessSet& set) {
  const std::vector<int> ranks = set.ranks();
  const auto found = std::find(ranks.begin(), ranks.end(), options.root);
  return found == ranks.end() ? 0 : static_cast<int>(found - ranks.begin());
}

Timing timing_of(const std::vector<double>& slowest) {
  return {median(slowest), *std::min_element(slowest.begin(), slowest.end()),
          percentile(slowest, 50), percentile(slowest, 99)};
}

std::vector<double> ratios(std::vector<double> horon, const std::vector<double>& peer) {
  // A time of zero is one that the clock could not tell from the rewriting of the data.
  constexpr double kLeastS = 1e-9;
  for (size_t i = 0; i < horon.size(); ++i) {
    horon[i] = std::max(horon[i], kLeastS) / std::max(peer[i], kLeastS);
  }
  return horon;
}

// The narrowest type in which the values travel: sums of float32 may be rounded to it.
DataType carried_type(const Options& options, const core::Config& config) {
  if (core::is_16_bit(options.compression)) return core::narrow_type(options.compression);
  if (options.compression == Compression::Int8) return DataType::Int8;
  if (options.dtype != DataType::Float32) return options.dtype;
  return ops::wire_type_named(config.wire_dtype).dtype();
}

TestData data_of(const Options& options, const core::Config& config, int ranks) {
  return {options.dtype, options.op, ranks, carried_type(options, config)};
}

std::shared_ptr<std::byte> private_memory(size_t bytes, int64_t offset) {
  constexpr std::align_val_t page{4096};
  auto* const whole =
      static_cast<std::byte*>(::operator new(bytes + static_cast<size_t>(offset), page));
  return {whole + offset, [whole](std::byte*) { ::operator delete(whole, page); }};
}

}  // namespace

std::shared_ptr<ops::JobGpu> gpu_of_rank() {
  auto gpu = ops::gpu();
  if (!gpu->available()) {
    throw Error(ErrorCode::Config, core::concat("--device cuda: ", gpu->unavailable()));
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

Measurement::Measurement(const Options& options, const ProcessSet& set, core::Runtime& runtime,
                         MpiPeer& mpi, Peers* peers)
    : options_(options),
      set_(set),
      rank_(set.rank()),
      ranks_(set.size()),
      root_(root_index(options, set)),
      case_(find_case(options.collective)),
      runtime_(runtime),
      mpi_(mpi),
      peers_(peers),
      mine_(data_of(options, runtime.config(), ranks_).of_rank(rank_)),
      expected_(case_.expected(data_of(options, runtime.config(), ranks_), ranks_, root_)),
      buffers_(std::make_unique<Buffers>()) {
  const Shape largest = case_.shape(options.bytes_max, options.dtype, ranks_);
  const auto element = static_cast<int64_t>(size_of(options.dtype));
  const auto input_bytes = static_cast<size_t>(std::max<int64_t>(1, largest.input_count * element));
  const auto output_bytes =
      static_cast<size_t>(std::max<int64_t>(1, largest.output_count * element));
  if (options.device == DeviceKind::Cuda) {
    gpu_ = gpu_of_rank();
    gpu_memory_ = open_gpu_memory(gpu_->cuda());
    staging_.resize(std::max(input_bytes, output_bytes));
    buffers_->input = gpu_memory_->allocate(input_bytes);
    buffers_->output = gpu_memory_->allocate(output_bytes);
    return;
  }
  const auto allocate = [&options](bool registered, size_t bytes) {
    std::shared_ptr<std::byte> memory =
        registered ? ops::allocate_host(bytes) : private_memory(bytes, options.offset);
    std::memset(memory.get(), 1, bytes);
    return memory;
  };
  const bool has_input = !case_.has_in_place || options.form != Form::InPlace;
  if (has_input) buffers_->input = allocate(options.registered, input_bytes);
  buffers_->output = allocate(options.registered, output_bytes);
  if (options.peers.empty()) return;
  if (has_input) buffers_->peer_input = allocate(false, input_bytes);
  buffers_->peer_output = allocate(false, output_bytes);
}

Measurement::~Measurement() = default;

Row Measurement::run(int64_t bytes) {
  Row row;
  row.shape = case_.shape(bytes, options_.dtype, ranks_);
  row.ping_s = mpi_.ping_s();
  const bool in_place = case_.has_in_place && options_.form != Form::OutOfPlace;
  const bool out_of_place = !case_.has_in_place || options_.form != Form::InPlace;
  if (out_of_place) row.out_of_place = run_placement(row.shape, false);
  if (in_place) row.in_place = run_placement(row.shape, true);
  return row;
}

Placement Measurement::run_placement(const Shape& shape, bool in_place) {
  const Call ours = make_call(shape, in_place, false);
  const Call theirs = make_call(shape, in_place, true);
  const int calls = calls_per_sample(shape.message_bytes, options_.device);
  std::vector<Contender> contenders = {{nullptr, &ours}};
  Placement result;
  result.peers = choose_peers(theirs, calls, contenders);
  auto begin = Clock::now();
  const auto count = static_cast<int>(contenders.size());
  for (int i = -options_.warmup_iters; i < options_.iters; ++i) {
    // The time of the timed repetitions begins here: slow first calls take nothing of it.
    if (i == 0) begin = Clock::now();
    for (int turn = 0; turn < count; ++turn) {
      // Each repetition begins with another contender.
      const int first = (i + options_.warmup_iters) % count;
      Contender& contender = contenders[static_cast<size_t>((first + turn) % count)];
      const double sample = time_once(contender, calls);
      if (i >= 0) contender.samples.push_back(sample);
      const bool verifiable = contender.peer == nullptr && gpu_ == nullptr;
      if (i < 0 && verifiable && options_.check) result.wrong += check(ours);
    }
    if (time_is_over(i + 1, seconds_since(begin))) {
      if (i + 1 >= kLeastRepetitions) break;
      i = -1;  // no more warm-up
    }
  }
  if (options_.check) {
    (void)time_once(contenders.front(), 1);
    result.wrong += check(ours);
  }
  result.wrong = mpi_.sum(result.wrong);
  result.repetitions = static_cast<int>(contenders.front().samples.size());
  const std::vector<double> horon = mpi_.max(contenders.front().samples);
  result.horon = timing_of(horon);
  for (size_t i = 0; i < result.peers.size(); ++i) {
    const std::vector<double> peer = mpi_.max(contenders[i + 1].samples);
    result.peers[i].timing = timing_of(peer);
    result.peers[i].ratio = quartiles(ratios(horon, peer));
  }
  return result;
}

std::vector<PeerTiming> Measurement::choose_peers(const Call& call, int calls,
                                                  std::vector<Contender>& contenders) {
  std::vector<PeerTiming> result;
  if (peers_ == nullptr) return result;
  const auto time = [&](Peer& peer) {
    return mpi_.max({time_once({&peer, &call}, calls)}).front();
  };
  for (const PeerKind kind : peers_->kinds()) {
    const Peers::Choice choice = peers_->choose(kind, call.shape.message_bytes, time);
    contenders.push_back({choice.peer, &call});
    result.push_back({kind, choice.algorithm, {}, {}});
    if (!options_.check) continue;
    // A peer that does only a part of its work would look fast. Peers have no average, so its
    // result is not compared.
    (void)time_once(contenders.back(), 1);
    const bool comparable = !core::reduces(case_.kind) || options_.op != ReduceOp::Average;
    if (comparable && mpi_.sum(check(call)) > 0) {
      throw Error(ErrorCode::OperationFailed, core::concat(to_string(kind), " ", choice.algorithm,
                                                           " has given a wrong result"));
    }
  }
  return result;
}

// `repetitions`: so many timed ones are over; if it is negative, so many warm-ups are left.
// `passed_s`: the time since the first timed repetition, or since the first warm-up.
bool Measurement::time_is_over(int repetitions, double passed_s) {
  if (options_.seconds_max == 0 || repetitions == 0) return false;
  if (repetitions > 0 && repetitions < kLeastRepetitions) return false;
  if (repetitions < 0 && options_.warmup_iters + repetitions < kLeastWarmups) return false;
  const double limit_s = repetitions < 0 ? options_.seconds_max / 4 : options_.seconds_max;
  return mpi_.max({passed_s}).front() > limit_s;
}

Call Measurement::make_call(const Shape& shape, bool in_place, bool peer) const {
  core::EntrySpec spec;
  spec.kind = case_.kind;
  spec.device = options_.device;
  spec.dtype = options_.dtype;
  spec.compression = options_.compression;
  spec.piece_bytes = options_.piece_bytes;
  spec.reduce_op = options_.op;
  spec.root = options_.root;
  spec.parts = {{"", {shape.input_count}}};
  Call call;
  const std::string name = core::concat("bench.", shape.message_bytes, in_place ? ".in_place" : "");
  call.async = options_.calling == Calling::Async;
  call.set = set_.id();
  call.ranks = ranks_;
  call.root_index = root_;
  call.entries = entries_of(options_, name, spec);
  call.spec = std::make_shared<const core::EntrySpec>(std::move(spec));
  call.shape = shape;
  if (gpu_ != nullptr) call.device_index = gpu_->device();
  call.memory = std::make_shared<Buffers>(*buffers_);
  call.output = (peer ? buffers_->peer_output : buffers_->output).get();
  call.input = in_place ? call.output : (peer ? buffers_->peer_input : buffers_->input).get();
  return call;
}

double Measurement::time_once(const Contender& contender, int calls) {
  const Call& call = *contender.call;
  if (gpu_ != nullptr) return time_on_gpu(call, calls);
  double rewriting_s = 0;
  if (calls > 1) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls - 1; ++i) rewrite(call);
    rewriting_s = seconds_since(begin);
  }
  rewrite(call);
  mpi_.barrier();
  const auto begin = Clock::now();
  run(contender);
  for (int i = 1; i < calls; ++i) {
    rewrite(call);
    run(contender);
  }
  const double passed_s = seconds_since(begin);
  if (rests_after(call)) mpi_.rest_until_all_are_here();
  return std::max(0.0, passed_s - rewriting_s) / calls;
}

// Where ranks share a core, a rank that writes its next values takes CPU time from ranks that are
// still in the collective, so it sleeps until all are out of it. To write fewer bytes than
// kWrittenBytes takes no longer than to wake up.
bool Measurement::rests_after(const Call& call) const {
  constexpr int64_t kWrittenBytes = 1 << 20;
  const core::CpuShare& share = ops::cpu_share();
  return share.sharers > share.cores &&
         call.shape.input_count * static_cast<int64_t>(size_of(options_.dtype)) >= kWrittenBytes;
}

double Measurement::time_on_gpu(Call call, int calls) {
  rewrite(call);
  if (calls > 1) {
    // Writing the data took milliseconds, in which Horon's thread has gone to sleep. A program that
    // trains does not find it asleep, so a call that is not timed wakes it up.
    call.waits_for_device = true;
    case_.run(runtime_, call);
  }
  mpi_.barrier();
  const auto begin = Clock::now();
  for (int i = 1; i <= calls; ++i) {
    call.waits_for_device = i == calls;
    case_.run(runtime_, call);
  }
  return seconds_since(begin) / calls;
}

void Measurement::run(const Contender& contender) {
  if (contender.peer == nullptr) {
    case_.run(runtime_, *contender.call);
  } else {
    case_.run_peer(*contender.peer, *contender.call);
  }
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

int64_t Measurement::check(const Call& call) {
  if (case_.result_at_root && rank_ != root_) return 0;
  const auto blocks = static_cast<int64_t>(expected_.size());
  const std::byte* block = result_of(call);
  const int64_t own_begin = case_.own_part ? rank_ * (call.shape.input_count / ranks_) : 0;
  int64_t wrong = 0;
  for (const PeriodicData& expected : expected_) {
    wrong += expected.count_wrong(block, call.shape.output_count / blocks, offset_ + own_begin);
    block += call.shape.message_bytes / blocks;
  }
  return wrong;
}

}  // namespace horon::bench
