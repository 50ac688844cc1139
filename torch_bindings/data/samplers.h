// Which samples of a dataset this rank sees, as samplers for torch::data::make_data_loader and
// PrefetchLoader (prefetch_loader.h).
//
// A loader takes its sampler by value: copies share one state, so set_epoch() on the program's own
// copy reaches the loader. Give each loader a sampler of its own. Samplers draw from a generator of
// their own and leave LibTorch's alone. Any thread may call any copy.
//
// save() writes seed, epoch and position, and load() goes on there, also in the middle of an epoch
// and also in a job of another number of ranks or with batches of another size: of the rest of the
// epoch each rank then gets its part. With workers LibTorch's loader draws ahead of what it hands
// out, and save() writes a position ahead of the program's; PrefetchLoader saves the program's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/data/samplers/base.h>

#include "horon/ops/session/process_set.h"

namespace horon {
namespace torch_detail {
class Deal;
}

struct SamplerOptions {
  // The number of shards, and which of them is this rank's; by default those of the process set,
  // which need a running session.
  std::optional<size_t> num_replicas = {};
  std::optional<size_t> rank = {};
  // The same on all ranks. Permutations are a function of seed, epoch and dataset size, on every
  // machine.
  uint64_t seed = 0;
  // false: the order of the dataset.
  bool shuffle = true;
  // All ranks get equally many samples in an epoch, so that none waits for gradients of another
  // that has run out. If the samples can't be divided evenly, false: some come twice (the first of
  // the permutation again); true: some are left out, other ones in every epoch. While the number of
  // ranks stays the same, none is left out a second time before all others have been left out once.
  bool drop_last = false;
  // true: each sample once, and some ranks get one more than others. Then end the epoch with
  // join(), and before the next one take over parameters, optimizer state and the place of the
  // schedule from the rank that joined last. Not together with drop_last.
  bool uneven = false;
  // The ranks that share the samples. On other ranks the constructor throws Error(InvalidArgument),
  // and everywhere together with num_replicas or rank.
  ProcessSet process_set = {};
};

// Where a sampler is.
struct SamplerPosition {
  size_t epoch = 0;
  size_t drawn = 0;  // samples of this epoch that this rank has drawn in this job
};

// What all samplers of sample numbers do.
class ShardedSampler : public torch::data::samplers::Sampler<> {
 public:
  // The epoch that the next reset() begins; a loader resets at each begin(). Without it each
  // begin() takes the next one.
  void set_epoch(size_t epoch);
  // The epoch that samples are drawn from.
  size_t epoch() const;
  // Samples that this rank draws in this epoch: fewer in an epoch that began in an earlier job of
  // another number of ranks.
  size_t samples_per_epoch() const;

  // Begins an epoch (the first one again if nothing was drawn); with a size, of a dataset of that
  // many samples. After load() it goes on where the saved one was, until something has been drawn
  // or set_epoch() has chosen another epoch, and a size must be that of the saved one. If the saved
  // one was at the end of an epoch, that is an epoch without samples; a loop that calls set_epoch()
  // has none.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  // Up to batch_size indices; nothing at the end of the epoch.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  // Seed, epoch and position; and of what dataset, on how many ranks.
  void save(torch::serialize::OutputArchive& archive) const override;
  // What save() would write at `position`, which may not be of another epoch.
  void save_at(torch::serialize::OutputArchive& archive, const SamplerPosition& position) const;
  SamplerPosition position() const;
  // Takes back samples that were drawn after `position` but that nobody has used; `position` must
  // be of the current epoch. The next reset() goes on there, unless set_epoch() has chosen another
  // epoch.
  void put_back(const SamplerPosition& position);
  // From a job of another number of ranks: assumes that all its ranks had drawn as many samples as
  // the one that saved. Throws Error(InvalidArgument) if the dataset or the options differ.
  void load(torch::serialize::InputArchive& archive) override;
  // From what all ranks of a job have saved, in the order of ranks: they may have drawn different
  // numbers. Throws Error(InvalidArgument), also if they were in different epochs.
  void load_resharded(std::vector<torch::serialize::InputArchive>& ranks);

 protected:
  // `batch`: what next() hands out, whatever it is asked for; 0: what it is asked for. Throws
  // Error(InvalidArgument) for 0 replicas or a rank that is not below their number.
  ShardedSampler(size_t dataset_size, const SamplerOptions& options,
                 std::shared_ptr<const torch_detail::Deal> deal, size_t batch = 0);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// For training: every epoch another permutation of the whole dataset, the same on all ranks, of
// which each rank takes its part. Any number of samples and ranks.
class DistributedRandomSampler : public ShardedSampler {
 public:
  // Throws Error(InvalidArgument) for 0 replicas, a rank that is not below their number, options
  // that contradict each other.
  explicit DistributedRandomSampler(size_t dataset_size, const SamplerOptions& options = {});
};

// For evaluation: each sample exactly once over all ranks, in contiguous blocks in the order of the
// dataset. Ranks may get different numbers of samples (none, if there are more ranks than samples):
// sum counts with allreduce after the loop, and call no collectives inside it.
class DistributedSequentialSampler : public ShardedSampler {
 public:
  // Of the options only num_replicas, rank and process_set matter. Throws Error(InvalidArgument) as
  // above. Each reset() begins from the first sample, except the first reset() after load().
  explicit DistributedSequentialSampler(size_t dataset_size, const SamplerOptions& options = {});
};

// The same as DistributedRandomSampler in batches of one size, which the sampler gives and not the
// loader (its batch size does not count). With drop_last all batches are full: an epoch leaves out
// less than one batch of each rank, and other samples every time.
class DistributedBatchSampler : public ShardedSampler {
 public:
  // Throws Error(InvalidArgument) as above, and for batches of 0 samples.
  DistributedBatchSampler(size_t dataset_size, size_t batch_size,
                          const SamplerOptions& options = {});
};

// For samples of unequal cost (sentences of unequal length): batches of equally many samples of
// nearly equal cost on all ranks, so that none waits long for another's backward().
//
// In each step the costs of two ranks' batches differ by at most the largest difference between
// the costs of `num_replicas` neighbours, when the samples of the step are sorted by cost; so never
// by more than the difference between its dearest and its cheapest sample. (Longest processing time
// first, with equal counts. An incomplete last batch of uneven options is not balanced.)
class BalancedBatchSampler : public ShardedSampler {
 public:
  // `costs`: one for each sample, finite and not negative, the same on all ranks. `pool_steps`: the
  // samples of so many steps are sorted together, so that also those of one step become alike and
  // padding becomes less; 1 leaves the shuffled steps as they are. Throws Error(InvalidArgument) as
  // above, for impossible costs, and for a pool of 0 steps. reset() takes no new size.
  BalancedBatchSampler(std::vector<double> costs, size_t batch_size,
                       const SamplerOptions& options = {}, size_t pool_steps = 1);
};

}  // namespace horon
