#include "horon/torch_bindings/data/samplers.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"

namespace horon {
namespace {

struct Shard {
  size_t replicas = 1;
  size_t rank = 0;
};

Shard make_shard(const SamplerOptions& options) {
  Shard shard;
  shard.replicas = options.num_replicas ? *options.num_replicas : static_cast<size_t>(size());
  shard.rank = options.rank ? *options.rank : static_cast<size_t>(rank());
  if (shard.rank >= shard.replicas) {
    throw Error(
        ErrorCode::InvalidArgument,
        core::concat("sampler: rank ", shard.rank, " is none of ", shard.replicas, " replicas"));
  }
  return shard;
}

// SplitMix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators"): the
// same numbers on every machine, which the distributions of the standard library do not promise.
class Generator {
 public:
  Generator(uint64_t seed, uint64_t epoch) : state_(seed) { state_ = next() ^ epoch; }

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // Even over 0 .. bound-1: numbers of the incomplete last stretch of multiples are drawn again.
  uint64_t below(uint64_t bound) {
    const uint64_t skip = (0 - bound) % bound;
    for (;;) {
      const uint64_t number = next();
      if (number >= skip) return number % bound;
    }
  }

 private:
  uint64_t state_;
};

// Fisher and Yates.
std::vector<size_t> permutation(size_t count, uint64_t seed, uint64_t epoch) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  Generator generator(seed, epoch);
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[generator.below(i)]);
  return order;
}

void write_number(torch::serialize::OutputArchive& archive, const char* key, size_t number) {
  archive.write(key, c10::IValue(static_cast<int64_t>(number)));
}

size_t read_number(torch::serialize::InputArchive& archive, const char* key) {
  c10::IValue value;
  archive.read(key, value);
  return static_cast<size_t>(value.toInt());
}

// What both samplers save. The size of the dataset and the number of ranks are saved to be checked:
// with others the samples would be wrong without an error.
void write_position(torch::serialize::OutputArchive& archive, size_t dataset_size,
                    const Shard& shard, size_t position) {
  write_number(archive, "dataset_size", dataset_size);
  write_number(archive, "replicas", shard.replicas);
  write_number(archive, "position", position);
}

size_t read_position(torch::serialize::InputArchive& archive, size_t dataset_size,
                     const Shard& shard) {
  const size_t saved_size = read_number(archive, "dataset_size");
  const size_t saved_replicas = read_number(archive, "replicas");
  if (saved_size != dataset_size || saved_replicas != shard.replicas) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("sampler: saved for ", saved_size, " samples on ", saved_replicas,
                             " ranks, this one has ", dataset_size, " on ", shard.replicas));
  }
  return read_number(archive, "position");
}

}  // namespace

struct DistributedRandomSampler::State {
  // The loader's thread draws while the program's may set the epoch.
  mutable std::mutex mutex;
  size_t dataset_size = 0;
  Shard shard;
  SamplerOptions options;
  size_t epoch = 0;
  std::optional<size_t> chosen_epoch;  // by set_epoch(), for the next reset()
  bool drawn = false;                  // has next() been called in this epoch?
  size_t position = 0;                 // samples that this rank has drawn
  bool resuming = false;
  std::vector<size_t> order;  // this rank's samples of the epoch

  size_t samples() const {
    if (options.drop_last) return dataset_size / shard.replicas;
    return (dataset_size + shard.replicas - 1) / shard.replicas;
  }

  // Position i of the (padded) permutation goes to rank i % replicas.
  void begin(size_t which) {
    epoch = which;
    position = 0;
    drawn = false;
    std::vector<size_t> all;
    if (options.shuffle) all = permutation(dataset_size, options.seed, epoch);
    order.resize(samples());
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t place = (i * shard.replicas + shard.rank) % dataset_size;
      order[i] = options.shuffle ? all[place] : place;
    }
  }
};

DistributedRandomSampler::DistributedRandomSampler(size_t dataset_size,
                                                   const SamplerOptions& options)
    : state_(std::make_shared<State>()) {
  state_->shard = make_shard(options);
  state_->dataset_size = dataset_size;
  state_->options = options;
  state_->begin(0);
}

void DistributedRandomSampler::set_epoch(size_t epoch) {
  const std::lock_guard lock(state_->mutex);
  state_->chosen_epoch = epoch;
  if (epoch != state_->epoch) state_->resuming = false;
}

size_t DistributedRandomSampler::epoch() const {
  const std::lock_guard lock(state_->mutex);
  return state_->epoch;
}

size_t DistributedRandomSampler::samples_per_epoch() const {
  const std::lock_guard lock(state_->mutex);
  return state_->samples();
}

void DistributedRandomSampler::reset(std::optional<size_t> new_size) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  const std::optional<size_t> chosen = std::exchange(s.chosen_epoch, std::nullopt);
  if (std::exchange(s.resuming, false)) return;
  if (new_size) s.dataset_size = *new_size;
  s.begin(chosen.value_or(s.drawn ? s.epoch + 1 : s.epoch));
}

std::optional<std::vector<size_t>> DistributedRandomSampler::next(size_t batch_size) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  const size_t count = std::min(batch_size, s.order.size() - s.position);
  s.drawn = true;
  if (count == 0) return std::nullopt;
  const auto first = s.order.begin() + static_cast<std::ptrdiff_t>(s.position);
  s.position += count;
  return std::vector<size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

void DistributedRandomSampler::save(torch::serialize::OutputArchive& archive) const {
  const std::lock_guard lock(state_->mutex);
  write_position(archive, state_->dataset_size, state_->shard, state_->position);
  write_number(archive, "epoch", state_->epoch);
}

void DistributedRandomSampler::load(torch::serialize::InputArchive& archive) {
  const std::lock_guard lock(state_->mutex);
  const size_t position = read_position(archive, state_->dataset_size, state_->shard);
  state_->begin(read_number(archive, "epoch"));
  state_->position = std::min(position, state_->order.size());
  state_->resuming = true;
}

struct DistributedSequentialSampler::State {
  size_t dataset_size = 0;
  Shard shard;
  size_t position = 0;  // samples that this rank has drawn
  bool resuming = false;

  // The block of rank r begins at floor(r * size / replicas), without overflow.
  size_t block_begin(size_t r) const {
    return dataset_size / shard.replicas * r + dataset_size % shard.replicas * r / shard.replicas;
  }
  size_t samples() const { return block_begin(shard.rank + 1) - block_begin(shard.rank); }
};

DistributedSequentialSampler::DistributedSequentialSampler(size_t dataset_size,
                                                           const SamplerOptions& options)
    : state_(std::make_shared<State>()) {
  state_->shard = make_shard(options);
  state_->dataset_size = dataset_size;
}

size_t DistributedSequentialSampler::samples_per_epoch() const { return state_->samples(); }

void DistributedSequentialSampler::reset(std::optional<size_t> new_size) {
  if (std::exchange(state_->resuming, false)) return;
  if (new_size) state_->dataset_size = *new_size;
  state_->position = 0;
}

std::optional<std::vector<size_t>> DistributedSequentialSampler::next(size_t batch_size) {
  const size_t count = std::min(batch_size, state_->samples() - state_->position);
  if (count == 0) return std::nullopt;
  std::vector<size_t> indices(count);
  std::iota(indices.begin(), indices.end(),
            state_->block_begin(state_->shard.rank) + state_->position);
  state_->position += count;
  return indices;
}

void DistributedSequentialSampler::save(torch::serialize::OutputArchive& archive) const {
  write_position(archive, state_->dataset_size, state_->shard, state_->position);
}

void DistributedSequentialSampler::load(torch::serialize::InputArchive& archive) {
  const size_t position = read_position(archive, state_->dataset_size, state_->shard);
  state_->position = std::min(position, state_->samples());
  state_->resuming = true;
}

}  // namespace horon
