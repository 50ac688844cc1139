// Which records of a stream this rank reads, as a sampler for torch::data::make_data_loader and
// PrefetchLoader: for data that can be read only from its beginning on, such as a log, a pipe or
// packed files.
//
// The dataset's BatchRequestType is StreamBatch. Rank r of R reads records r, r + R, r + 2 R ...
// and passes over the others.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include <torch/data/samplers/base.h>
#include <torch/data/samplers/custom_batch_request.h>

#include "horon/torch_bindings/data/samplers.h"

namespace horon {

// Records first, first + stride, ..., `count` of them, numbered from the beginning of the epoch.
struct StreamBatch : torch::data::samplers::CustomBatchRequest {
  StreamBatch() = default;
  StreamBatch(size_t first_record, size_t record_stride, size_t records)
      : first(first_record), stride(record_stride), count(records) {}
  size_t size() const override { return count; }

  size_t first = 0;
  size_t stride = 1;
  size_t count = 0;
};

struct StreamOptions {
  std::optional<size_t> num_replicas = {};  // as in SamplerOptions
  std::optional<size_t> rank = {};
  // Records of an epoch; without it there is no end but the stream's: then all batches are full,
  // and a dataset that reaches its end says so with a smaller batch or an exception.
  std::optional<size_t> records = {};
  // Of an epoch of known length, true: all ranks read equally many records (the last ones, fewer
  // than ranks, are passed over). false: some read one more; end the epoch with join().
  bool drop_last = true;
  ProcessSet process_set = {};  // as in SamplerOptions
};

// Saves and loads its place as the other samplers do. All ranks must have read equally many records
// if a job of another number of ranks is to go on there, or all have come to the end of the epoch.
class DistributedStreamSampler : public torch::data::samplers::Sampler<StreamBatch> {
 public:
  // Throws Error(InvalidArgument) for 0 replicas, a rank that is not below their number, and on a
  // rank that is not in the process set.
  explicit DistributedStreamSampler(const StreamOptions& options = {});

  void set_epoch(size_t epoch);
  size_t epoch() const;

  // As in ShardedSampler; a new size becomes the number of records.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  std::optional<StreamBatch> next(size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void save_at(torch::serialize::OutputArchive& archive, const SamplerPosition& position) const;
  SamplerPosition position() const;
  void put_back(const SamplerPosition& position);  // as in ShardedSampler
  void load(torch::serialize::InputArchive& archive) override;
  // Throws Error(InvalidArgument) if the ranks are neither at the same place nor all at the end.
  void load_resharded(std::vector<torch::serialize::InputArchive>& ranks);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace horon
