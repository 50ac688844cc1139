// Metrics over the samples of all ranks. A rank adds up what its own samples give, and compute()
// adds up the ranks, so the value is that of all samples together, however they are divided: a rank
// may have more than another, or none. The mean of the ranks' own values would be another number.
//
//   horon::metrics::Accuracy accuracy({.classes = 10});
//   for (auto& batch : *loader) accuracy.update(model->forward(batch.data), batch.target);
//   double all = accuracy.compute().item<double>();  // the same on all ranks
//   accuracy.reset();
//
// update() and forward() are local; compute() is collective, and several metrics do it in one call
// in a MetricCollection (metric_collection.h). compute() leaves the metric as it is, so one can go
// on with update(). It communicates each time: if a rank without new samples returned the value of
// the call before, the others would wait for it.
//
// Tensors may be on any device and of any floating type; they are added up in float64 or int64.
// Counts are exact up to 2^53, sums are rounded as float64 sums are. update() does not wait for a
// GPU, unless its metric says so; forward() and compute() do. A metric belongs to one thread at a
// time and can be moved, not copied.
//
// Errors: InvalidArgument from update() where shapes or dtypes don't fit; from compute(), on all
// ranks, where labels were out of range on any of them. forward() throws it at once for such
// labels, on this rank alone, and does not count the batch. Mismatch where ranks have metrics of
// different kinds or options. Others as in collectives.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/ops/session/process_set.h"

namespace horon::metrics {

struct MetricOptions {
  std::string name = {};  // of the collective; empty: "metrics.noname.N"
  ProcessSet process_set = {};
};

// What one batch gave on this rank. No tensor and no number, so that it is not averaged over ranks
// by mistake: allreduce() does not take it, and Logger::log() takes it only where that is right.
struct BatchValue {
  at::Tensor value;  // as compute() gives it, for this batch
  // float64 []: how many samples. Undefined if the value is no mean over samples (precision, F1,
  // AUROC, perplexity, ...): then the mean of the values of batches or ranks is not the value of
  // all samples, whatever the weights.
  at::Tensor weight;

  bool is_mean_over_samples() const { return weight.defined(); }
};

// What a metric has added up so far, on the device of its samples.
struct MetricState {
  at::Tensor sums;    // float64 [n]
  at::Tensor counts;  // int64 [n]
  // Where single samples are needed: lists of floating tensors [any] in host memory.
  std::vector<std::vector<at::Tensor>> lists;
};

// The same in host memory, of one rank or of all.
struct MetricTotals {
  at::Tensor sums, counts;
  std::vector<at::Tensor> lists;  // float64 [any]; those of all ranks in the order of ranks
};

class Metric {
 public:
  virtual ~Metric() = default;
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  // Over the samples of all ranks of the set since reset(). Each class says what it is, a float64
  // scalar mostly, and what it is where there are no samples.
  at::Tensor compute(const MetricOptions& options = {}) const;
  // Over this rank's samples. Local.
  at::Tensor compute_local() const;
  // Forgets all samples. Local.
  void reset();

  // Its kind and options, which all ranks must have alike: "accuracy of 10 classes, ...".
  virtual std::string description() const = 0;

 protected:
  Metric(int64_t sums, int64_t counts, size_t lists = 0);
  Metric(Metric&&) = default;
  Metric& operator=(Metric&&) = default;

  virtual at::Tensor value_of(const MetricTotals& totals) const = 0;
  // float64 [], the number of samples, if the value is a mean over them; else undefined.
  virtual at::Tensor weight_of(const MetricTotals& totals) const;

  MetricState empty_state() const;
  // Adds a batch to what there is, on the device of the batch.
  void merge(MetricState batch);
  BatchValue merge_and_value(MetricState batch);

 private:
  friend class MetricSync;

  int64_t sums_ = 0, counts_ = 0;  // how many
  size_t lists_ = 0;
  MetricState state_;
};

// A metric of predictions and what they should have been.
class PredictionMetric : public Metric {
 public:
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  // update(), and the value of this batch alone on this rank.
  BatchValue forward(const at::Tensor& predictions, const at::Tensor& targets);

 protected:
  using Metric::Metric;
  // Writes to an empty state. Throws Error(InvalidArgument).
  virtual void add_batch(MetricState& state, const at::Tensor& predictions,
                         const at::Tensor& targets) const = 0;

 private:
  friend class MetricCollection;
  MetricState state_of(const at::Tensor& predictions, const at::Tensor& targets) const;
};

}  // namespace horon::metrics
