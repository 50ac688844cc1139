// A loader that reads the next batches while the program trains on this one.
//
//   horon::PrefetchLoader batches(dataset, horon::DistributedRandomSampler(50000),
//                                 {.batch_size = 64, .threads = 2, .ahead = 4});
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     for (auto& batch : batches) { loss = batch.data.sum(); }
//   }
//
// Like LibTorch's loader, with these differences:
//  - batches come in the sampler's order, with any number of threads;
//  - save() tells the place behind the last batch that was handed out, not the one that has been
//    read ahead, so that training goes on in mid-epoch where it stopped. If that place is the end
//    of an epoch, the first pass has no batches, unless the loop calls `sampler.set_epoch(e)` on
//    the program's copy with the number of the next epoch;
//  - what the dataset throws arrives in the program's loop, of its own type, behind the batches
//    before it;
//  - it can be left at any time: begin() starts anew, the destructor stops the threads. Both wait
//    for batches that are being read.
//
// Each thread has a copy of the dataset of its own, as in LibTorch's loader. What draws random
// numbers in a dataset should take a generator of its own, seeded by the sample's number and the
// epoch (image_folder.h has an example): the default generator of LibTorch is that of the training,
// and threads take from it in any order. The epoch is epoch() of the program's copy of the sampler,
// which stays the same while threads read. Without it each epoch repeats the same crops.
//
// The loader belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/data/prefetcher.h"
#include "horon/torch_bindings/data/samplers.h"
#include "horon/torch_bindings/tensors/thread_cores.h"

namespace horon {

struct PrefetchOptions {
  size_t batch_size = 1;
  size_t threads = 1;  // that read batches; each reads with one core
  size_t ahead = 2;    // batches that are read or being read, and not handed out; bounds the memory
};

// Dataset: what torch::data::make_data_loader takes (get_batch(), copyable). Sampler: one of
// Horon's; or any other, for which save() and load() of this class do not compile.
template <class Dataset, class Sampler>
class PrefetchLoader {
 public:
  using Batch =
      decltype(std::declval<Dataset&>().get_batch(*std::declval<Sampler&>().next(size_t{})));

  // Throws Error(InvalidArgument) for options of 0.
  PrefetchLoader(const Dataset& dataset, Sampler sampler, const PrefetchOptions& options = {})
      : datasets_(options.threads, dataset), sampler_(std::move(sampler)), options_(options) {
    if (options.batch_size == 0 || options.threads == 0 || options.ahead == 0) {
      throw Error(ErrorCode::InvalidArgument,
                  "PrefetchLoader: batch_size, threads and ahead must be at least 1");
    }
    if constexpr (kResumes) handed_out_ = sampler_.position();
  }
  ~PrefetchLoader() { stop(); }
  PrefetchLoader(const PrefetchLoader&) = delete;  // its threads know its address
  PrefetchLoader& operator=(const PrefetchLoader&) = delete;

  // An input iterator: one pass over the epoch.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Iterator() = default;
    explicit Iterator(PrefetchLoader* loader) : loader_(loader) { ++*this; }
    Batch& operator*() const { return *batch_; }
    Batch* operator->() const { return batch_.get(); }
    Iterator& operator++() {
      std::optional<Batch> batch = loader_->next();
      batch_ = batch ? std::make_shared<Batch>(*std::move(batch)) : nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(const Iterator& other) const { return batch_ == other.batch_; }

   private:
    PrefetchLoader* loader_ = nullptr;
    std::shared_ptr<Batch> batch_;
  };

  // Begins an epoch (the sampler's reset()) and waits for its first batch.
  Iterator begin() {
    start();
    return Iterator(this);
  }
  Iterator end() { return {}; }

  // The same without iterators: begins an epoch; the next batch, and nothing at its end. Begun
  // anew before next() was called it is the same epoch, whatever has been read ahead.
  void start() {
    stop();
    sampler_.reset(std::nullopt);
    if constexpr (kResumes) handed_out_ = sampler_.position();
    asked_ = false;
    prefetcher_ = std::make_unique<torch_detail::Prefetcher<Read>>(
        [this] { return draw(); }, options_.threads, options_.ahead);
  }
  std::optional<Batch> next() {
    if (!prefetcher_) return std::nullopt;
    asked_ = true;
    std::optional<Read> read = prefetcher_->next();
    if (!read) return std::nullopt;
    handed_out_ = read->place;
    return std::move(read->batch);
  }

  Sampler& sampler() { return sampler_; }
  // Seconds of this epoch that the program has waited for batches.
  double wait_seconds() const { return prefetcher_ ? prefetcher_->wait_seconds() : 0; }

  // The sampler's place, as the program has seen it. load() before begin(), which then goes on
  // there. Errors as of the sampler.
  template <class Archive>
  void save(Archive& archive) const {
    sampler_.save_at(archive, handed_out_);
  }
  template <class Archive>
  void load(Archive& archive) {
    prefetcher_.reset();
    sampler_.load(archive);
    handed_out_ = sampler_.position();
  }
  template <class Archive>
  void load_resharded(std::vector<Archive>& ranks) {
    prefetcher_.reset();
    sampler_.load_resharded(ranks);
    handed_out_ = sampler_.position();
  }

 private:
  static constexpr bool kResumes = requires(const Sampler& sampler) { sampler.position(); };

  struct Read {
    Batch batch;
    SamplerPosition place;  // of the sampler, behind this batch
  };

  void stop() {
    const bool is_untouched = prefetcher_ != nullptr && !asked_;
    prefetcher_.reset();  // its threads use the sampler
    if constexpr (requires { sampler_.put_back(handed_out_); }) {
      // Whether they have read already is chance, and other ranks must be in the same epoch.
      if (is_untouched) sampler_.put_back(handed_out_);
    }
  }

  typename torch_detail::Prefetcher<Read>::Work draw() {
    auto request = sampler_.next(options_.batch_size);
    if (!request) return {};
    SamplerPosition place;
    if constexpr (kResumes) place = sampler_.position();
    return [this, place, request = *std::move(request)](size_t thread) {
      torch_detail::use_one_core();
      return Read{datasets_[thread].get_batch(request), place};
    };
  }

  std::vector<Dataset> datasets_;  // one for each thread
  Sampler sampler_;
  const PrefetchOptions options_;
  SamplerPosition handed_out_;
  bool asked_ = false;                                          // for a batch of this epoch
  std::unique_ptr<torch_detail::Prefetcher<Read>> prefetcher_;  // last: its threads use the others
};

}  // namespace horon
