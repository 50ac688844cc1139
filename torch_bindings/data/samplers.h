// Which samples of a dataset this rank sees, as samplers for torch::data::make_data_loader.
//
// A loader takes its sampler by value: copies share one state, so set_epoch() on the program's own
// copy reaches the loader. Give each loader a sampler of its own. They draw from a generator of
// their own and leave LibTorch's alone. With workers a loader draws ahead of what it hands out;
// save() then tells a position ahead of the program's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/data/samplers/base.h>

namespace horon {

struct SamplerOptions {
  // The shards, and which of them is ours; by default size() and rank(), which need a running
  // session.
  std::optional<size_t> num_replicas = {};
  std::optional<size_t> rank = {};
  // The same on all ranks. Permutations are a function of seed, epoch and dataset size, on every
  // machine.
  uint64_t seed = 0;
  // false: the order of the dataset.
  bool shuffle = true;
  // All ranks get equally many samples in an epoch, so that none waits for gradients of another
  // that has run out. If the samples can't be divided evenly, false: some come twice (the first of
  // the permutation again); true: some are left out (the last of the permutation: others in every
  // epoch).
  bool drop_last = false;
};

// For training: every epoch another permutation of the whole dataset, the same on all ranks, of
// which each rank takes its part. Any number of samples and ranks.
class DistributedRandomSampler : public torch::data::samplers::Sampler<> {
 public:
  // Throws Error(InvalidArgument) for 0 replicas or a rank that is not below their number.
  explicit DistributedRandomSampler(size_t dataset_size, const SamplerOptions& options = {});

  // The epoch that the next reset() begins; a loader resets at each begin(). Without it each
  // begin() takes the next one.
  void set_epoch(size_t epoch);
  // The epoch that samples are drawn from.
  size_t epoch() const;
  // Samples that this rank draws in one epoch.
  size_t samples_per_epoch() const;

  // Begins an epoch (the first one again if nothing was drawn); with a size, of a dataset of that
  // many samples. After load() the first reset() goes on where the saved one was.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  // Up to batch_size indices; nothing at the end of the epoch.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  // Epoch and position.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// For evaluation: each sample exactly once over all ranks, in contiguous blocks in the order of the
// dataset. Ranks may get different numbers of samples (none, if there are more ranks than samples):
// sum counts with allreduce after the loop, and call no collectives inside it.
class DistributedSequentialSampler : public torch::data::samplers::Sampler<> {
 public:
  // Of the options only num_replicas and rank matter. Throws Error(InvalidArgument) as above.
  explicit DistributedSequentialSampler(size_t dataset_size, const SamplerOptions& options = {});

  size_t samples_per_epoch() const;

  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace horon
