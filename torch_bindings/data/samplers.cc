#include "horon/torch_bindings/data/samplers.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include <ATen/ops/tensor.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/data/epoch_order.h"

namespace horon {
namespace {

using core::concat;
using torch_detail::BalancedDeal;
using torch_detail::BlockDeal;
using torch_detail::InterleavedDeal;
using torch_detail::Stage;
using torch_detail::Tail;

[[noreturn]] void refuse_sampler(const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, concat("sampler: ", why));
}

Tail tail_of(const SamplerOptions& options) {
  if (options.drop_last && options.uneven)
    refuse_sampler("drop_last and uneven are both set; choose one");
  if (options.drop_last) return Tail::Drop;
  return options.uneven ? Tail::Uneven : Tail::Repeat;
}

size_t at_least_one(size_t number, const char* what) {
  if (number == 0) refuse_sampler(concat(what, " can't be 0"));
  return number;
}

std::vector<double> checked_costs(std::vector<double> costs) {
  for (size_t i = 0; i < costs.size(); ++i) {
    if (!std::isfinite(costs[i]) || costs[i] < 0) {
      refuse_sampler(concat("the cost of sample ", i, " is ", costs[i], "; give 0 or more"));
    }
  }
  return costs;
}

// What save() writes. Stages follow each other as their number of ranks, their batch, then what
// each has drawn.
struct Saved {
  size_t dataset_size = 0;
  size_t replicas = 0;
  uint64_t seed = 0;
  bool shuffle = false;
  bool drop_last = false;
  uint64_t rules = 0;  // of the deal
  size_t batch = 0;
  size_t epoch = 0;
  size_t left_out = 0;  // of this epoch
  size_t drawn = 0;
  std::vector<Stage> stages;
};

void write_number(torch::serialize::OutputArchive& archive, const char* key, uint64_t number) {
  archive.write(key, c10::IValue(static_cast<int64_t>(number)));
}

uint64_t read_number(torch::serialize::InputArchive& archive, const char* key) {
  c10::IValue value;
  if (!archive.try_read(key, value) || !value.isInt()) {
    refuse_sampler(concat("the archive was not saved by a sampler (it has no \"", key, "\")"));
  }
  return static_cast<uint64_t>(value.toInt());
}

void write(torch::serialize::OutputArchive& archive, const Saved& saved) {
  write_number(archive, "dataset_size", saved.dataset_size);
  write_number(archive, "replicas", saved.replicas);
  write_number(archive, "seed", saved.seed);
  write_number(archive, "shuffle", saved.shuffle ? 1 : 0);
  write_number(archive, "drop_last", saved.drop_last ? 1 : 0);
  write_number(archive, "rules", saved.rules);
  write_number(archive, "batch", saved.batch);
  write_number(archive, "epoch", saved.epoch);
  write_number(archive, "left_out", saved.left_out);
  write_number(archive, "position", saved.drawn);
  std::vector<int64_t> stages;
  for (const Stage& stage : saved.stages) {
    stages.push_back(static_cast<int64_t>(stage.drawn.size()));
    stages.push_back(static_cast<int64_t>(stage.batch));
    stages.insert(stages.end(), stage.drawn.begin(), stage.drawn.end());
  }
  archive.write("stages", at::tensor(stages, at::kLong));
}

Saved read(torch::serialize::InputArchive& archive) {
  Saved saved;
  saved.dataset_size = read_number(archive, "dataset_size");
  saved.replicas = at_least_one(read_number(archive, "replicas"), "the number of saved ranks");
  saved.seed = read_number(archive, "seed");
  saved.shuffle = read_number(archive, "shuffle") != 0;
  saved.drop_last = read_number(archive, "drop_last") != 0;
  saved.rules = read_number(archive, "rules");
  saved.batch = read_number(archive, "batch");
  saved.epoch = read_number(archive, "epoch");
  saved.left_out = read_number(archive, "left_out");
  saved.drawn = read_number(archive, "position");
  at::Tensor stages;
  if (!archive.try_read("stages", stages)) refuse_sampler("the archive has no \"stages\"");
  const auto* number = stages.const_data_ptr<int64_t>();
  const auto* end = number + stages.numel();
  while (number < end) {
    const int64_t ranks = *number++;
    if (ranks < 1 || ranks >= end - number) refuse_sampler("the archive has broken \"stages\"");
    const auto batch = static_cast<size_t>(*number++);
    saved.stages.push_back({{number, number + ranks}, batch});
    number += ranks;
  }
  return saved;
}

}  // namespace

struct ShardedSampler::State {
  // The loader's thread draws while the program's may set the epoch.
  mutable std::mutex mutex;
  std::shared_ptr<const torch_detail::Deal> deal;
  size_t dataset_size = 0;
  size_t replicas = 1;
  size_t rank = 0;
  size_t batch = 0;  // 0: what next() is asked for
  SamplerOptions options;
  size_t epoch = 0;
  size_t left_out = 0;                 // of this epoch
  std::vector<Stage> stages;           // of this epoch, by jobs before this one
  std::optional<size_t> chosen_epoch;  // by set_epoch(), for the next reset()
  bool touched = false;                // has next() been called in this epoch?
  size_t drawn = 0;                    // samples that this rank has drawn
  bool resuming = false;
  std::vector<size_t> order;  // this rank's samples of the epoch

  void begin(size_t which) {
    const size_t multiple = deal->multiple(replicas);
    go_on(which, multiple == 0 ? 0 : dataset_size % multiple, {});
  }

  void go_on(size_t which, size_t left_out_of_it, std::vector<Stage> earlier) {
    order = torch_detail::samples_of_rank({.samples = dataset_size,
                                           .seed = options.seed,
                                           .shuffle = options.shuffle,
                                           .epoch = which,
                                           .left_out = left_out_of_it},
                                          *deal, earlier, replicas, rank);
    epoch = which;
    left_out = left_out_of_it;
    stages = std::move(earlier);
    drawn = 0;
    touched = false;
  }

  Saved saved_at(const SamplerPosition& position) const {
    if (position.epoch != epoch) refuse_sampler("a position of another epoch can't be saved");
    return {.dataset_size = dataset_size,
            .replicas = replicas,
            .seed = options.seed,
            .shuffle = options.shuffle,
            .drop_last = options.drop_last,
            .rules = deal->rules(),
            .batch = batch,
            .epoch = epoch,
            .left_out = left_out,
            .drawn = position.drawn,
            .stages = stages};
  }

  void check(const Saved& saved) const {
    if (saved.dataset_size != dataset_size) {
      refuse_sampler(concat("it was saved for ", saved.dataset_size,
                            " samples, but this dataset has ", dataset_size));
    }
    if (saved.shuffle != options.shuffle || saved.drop_last != options.drop_last) {
      const auto text = [](bool value) { return value ? "true" : "false"; };
      refuse_sampler(concat("it was saved with shuffle = ", text(saved.shuffle),
                            " and drop_last = ", text(saved.drop_last), ", but here they are ",
                            text(options.shuffle), " and ", text(options.drop_last)));
    }
    if (saved.rules != deal->rules()) {
      refuse_sampler(
          "it was saved by a sampler of another kind, or with other costs or pool_steps");
    }
  }

  // Then the rest of the epoch must be dealt out anew, as for another number of ranks.
  bool has_other_batches(const Saved& saved) const {
    return saved.batch != batch && deal->depends_on_batch();
  }

  // `drawn_by_all`: by each rank of the job that saved.
  void resume(const Saved& saved, const std::vector<size_t>& drawn_by_all) {
    options.seed = saved.seed;
    std::vector<Stage> earlier = saved.stages;
    const bool same_deal = drawn_by_all.size() == replicas && !has_other_batches(saved);
    if (!same_deal) earlier.push_back({drawn_by_all, saved.batch});
    go_on(saved.epoch, saved.left_out, std::move(earlier));
    if (same_deal) drawn = std::min(drawn_by_all[rank], order.size());
    resuming = true;
  }
};

ShardedSampler::ShardedSampler(size_t dataset_size, const SamplerOptions& options,
                               std::shared_ptr<const torch_detail::Deal> deal, size_t batch)
    : state_(std::make_shared<State>()) {
  const torch_detail::Shard shard =
      torch_detail::shard_of(options.num_replicas, options.rank, options.process_set);
  if (!shard.fault.empty()) refuse_sampler(shard.fault);
  state_->replicas = shard.ranks;
  state_->rank = shard.rank;
  state_->deal = std::move(deal);
  state_->dataset_size = dataset_size;
  state_->batch = batch;
  state_->options = options;
  state_->begin(0);
}

void ShardedSampler::set_epoch(size_t epoch) {
  const std::lock_guard lock(state_->mutex);
  state_->chosen_epoch = epoch;
  if (epoch != state_->epoch) state_->resuming = false;
}

size_t ShardedSampler::epoch() const {
  const std::lock_guard lock(state_->mutex);
  return state_->epoch;
}

size_t ShardedSampler::samples_per_epoch() const {
  const std::lock_guard lock(state_->mutex);
  return state_->order.size();
}

void ShardedSampler::reset(std::optional<size_t> new_size) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  if (s.resuming && new_size && *new_size != s.dataset_size) {
    refuse_sampler(concat("the loaded position is among ", s.dataset_size,
                          " samples, but reset() gives ", *new_size,
                          "; call set_epoch() with another epoch first to drop that position"));
  }
  const std::optional<size_t> chosen = std::exchange(s.chosen_epoch, std::nullopt);
  if (s.resuming) return;  // also at a loader's reset() after the program's
  if (new_size && *new_size != s.dataset_size) {
    if (dynamic_cast<const BalancedDeal*>(s.deal.get()) != nullptr) {
      refuse_sampler("a sampler with costs can't take a dataset of another size");
    }
    s.dataset_size = *new_size;
  }
  s.begin(chosen.value_or(s.touched ? s.epoch + 1 : s.epoch));
}

std::optional<std::vector<size_t>> ShardedSampler::next(size_t batch_size) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  const size_t count = std::min(s.batch != 0 ? s.batch : batch_size, s.order.size() - s.drawn);
  s.touched = true;
  s.resuming = false;  // a program that draws at once after load() has gone on already
  if (count == 0) return std::nullopt;
  const auto first = s.order.begin() + static_cast<std::ptrdiff_t>(s.drawn);
  s.drawn += count;
  return std::vector<size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

SamplerPosition ShardedSampler::position() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->epoch, state_->drawn};
}

void ShardedSampler::put_back(const SamplerPosition& position) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  if (position.epoch != s.epoch) return;
  s.drawn = std::min(position.drawn, s.order.size());
  s.resuming = s.chosen_epoch.value_or(s.epoch) == s.epoch;
}

void ShardedSampler::save(torch::serialize::OutputArchive& archive) const {
  save_at(archive, position());
}

void ShardedSampler::save_at(torch::serialize::OutputArchive& archive,
                             const SamplerPosition& position) const {
  const std::lock_guard lock(state_->mutex);
  write(archive, state_->saved_at(position));
}

void ShardedSampler::load(torch::serialize::InputArchive& archive) {
  const std::lock_guard lock(state_->mutex);
  const Saved saved = read(archive);
  state_->check(saved);
  if (state_->options.uneven && state_->has_other_batches(saved)) {
    refuse_sampler(concat(
        "it was saved with batches of ", saved.batch, ", but here they are of ", state_->batch,
        "; a sampler with uneven costs can change its batch size only by load_resharded(), ",
        "which Checkpoints calls where the number of ranks changes"));
  }
  state_->resume(saved, std::vector<size_t>(saved.replicas, saved.drawn));
}

void ShardedSampler::load_resharded(std::vector<torch::serialize::InputArchive>& ranks) {
  const std::lock_guard lock(state_->mutex);
  if (ranks.empty()) refuse_sampler("there is nothing to load");
  const Saved first = read(ranks.front());
  std::vector<size_t> drawn;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Saved saved = read(ranks[r]);
    state_->check(saved);
    if (saved.replicas != ranks.size()) {
      refuse_sampler(concat("it was saved by ", saved.replicas,
                            " ranks and needs the archives of all, but got ", ranks.size()));
    }
    if (saved.epoch != first.epoch || saved.stages != first.stages || saved.seed != first.seed ||
        saved.batch != first.batch || saved.left_out != first.left_out) {
      refuse_sampler(
          concat("rank 0 was in epoch ", first.epoch, ", rank ", r, " in epoch ", saved.epoch,
                 " (or had another seed or batch); load archives that the ranks saved together"));
    }
    drawn.push_back(saved.drawn);
  }
  state_->resume(first, drawn);
}

DistributedRandomSampler::DistributedRandomSampler(size_t dataset_size,
                                                   const SamplerOptions& options)
    : ShardedSampler(dataset_size, options, std::make_shared<InterleavedDeal>(tail_of(options))) {}

namespace {
SamplerOptions in_order(SamplerOptions options) {
  options.shuffle = false;
  options.drop_last = false;
  return options;
}
}  // namespace

DistributedSequentialSampler::DistributedSequentialSampler(size_t dataset_size,
                                                           const SamplerOptions& options)
    : ShardedSampler(dataset_size, in_order(options), std::make_shared<BlockDeal>()) {}

DistributedBatchSampler::DistributedBatchSampler(size_t dataset_size, size_t batch_size,
                                                 const SamplerOptions& options)
    : ShardedSampler(dataset_size, options,
                     std::make_shared<InterleavedDeal>(tail_of(options),
                                                       at_least_one(batch_size, "the batch size")),
                     batch_size) {}

namespace {
std::shared_ptr<const BalancedDeal> balanced(std::vector<double> costs, size_t batch_size,
                                             const SamplerOptions& options, size_t pool_steps) {
  return std::make_shared<BalancedDeal>(checked_costs(std::move(costs)), tail_of(options),
                                        at_least_one(batch_size, "the batch size"),
                                        at_least_one(pool_steps, "the pool"));
}
}  // namespace

BalancedBatchSampler::BalancedBatchSampler(std::vector<double> costs, size_t batch_size,
                                           const SamplerOptions& options, size_t pool_steps)
    : ShardedSampler(costs.size(), options, balanced(costs, batch_size, options, pool_steps),
                     batch_size) {}

}  // namespace horon
