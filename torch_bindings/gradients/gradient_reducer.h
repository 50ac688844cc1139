// Reduces the gradients of a set of parameters over all ranks while backward() still runs.
//
// DistributedOptimizer is built on this; use it by itself with a training loop of your own:
//
//   horon::GradientReducer reducer(model->named_parameters(), {.op = horon::ReduceOp::Average});
//   loss.backward();          // full buckets are submitted from inside
//   reducer.synchronize();    // every .grad now holds the reduced gradient
//   optimizer.step();  optimizer.zero_grad();
//
// Gradients are reduced in buckets; .grad is a view of its bucket's memory, made by the hook that
// packs it, and is never copied out. What follows from that:
//  - between backward() and synchronize() (or step()) a .grad is not to be read or written: it is
//    being reduced. Call synchronize() before clipping gradients or printing their norm.
//  - a .grad kept over steps is overwritten by the next; keep p.grad().clone(). The same for
//    saving: torch::save of a .grad writes the whole bucket.
//
// Everything that a plain program does with gradients works: zero_grad() of optimizer and module,
// in both forms (between backward() and synchronize() only on all ranks alike, and there not the
// module's zero_grad(false)); several backward() calls before synchronize(), which add up;
// recomputation; retain_graph and create_graph; gradients that a program sets itself; sparse
// gradients; parameters without a gradient on some ranks (zeros there) or on all (their .grad stays
// undefined, so that no optimizer moves them): what DDP calls find_unused_parameters is always on
// and costs nothing. If .grad still holds the value of an earlier step, the new gradients are added
// to it.
//
// Ranks that have called join() take part with zeros until all have; an average is then that of the
// others. (With Sum and without zero_grad(), an older value loses the share of ranks that have
// joined.)
//
// Order: parameters with the same names, shapes, dtypes and strides, in the same order, on every
// rank; reducers are constructed in the same order unless they have names. Ranks may compute
// gradients in different orders, and of different parameters.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"
#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/tensors/named_tensors.h"

namespace horon {

namespace torch_detail {
class GradientEngine;
}

// The same on all ranks of the process set.
struct GradientReducerOptions {
  // What its collectives are called on all ranks. Empty: "gradients.N", counted by construction,
  // for each process set by itself.
  std::string name = {};
  // Min, Max and Product exist for the curious; gradients are summed or averaged.
  ReduceOp op = ReduceOp::Average;
  // The ranks that reduce with each other. On the others the reducer does nothing: gradients stay
  // what backward() has made them, and synchronize() returns.
  ProcessSet process_set = {};

  // Bytes; empty: HORON_BUCKET_BYTES and HORON_FIRST_BUCKET_BYTES.
  std::optional<int64_t> bucket_bytes = {};
  std::optional<int64_t> first_bucket_bytes = {};
  // float32 gradients travel in 16 bits and are summed in float32. Other dtypes ignore it.
  Compression compression = Compression::None;
  // k backward passes make one step: their gradients add up on this rank, and buckets are submitted
  // in the k-th pass. The sum over the passes is not divided by k; see the next option. Passes are
  // counted for each parameter by its gradients, so that one with several in a pass (recomputation)
  // counts them all. More than k passes are right too, and cost another reduction.
  int backward_passes_per_step = 1;
  // Divides the result by backward_passes_per_step, also when there were fewer passes.
  bool average_aggregated_gradients = false;
  // Average only, f: gradients are multiplied by 1/f before they are summed and by f/ranks after,
  // in fp32. Between 1 and the number of ranks it keeps 16-bit sums in range.
  double gradient_predivide_factor = 1;
  // Parameters that are reduced together, in one bucket for each group: by name, or as a number of
  // groups of neighbours. A group has one dtype (num_groups splits it where it has not). Parameters
  // in no group are shared out by bucket_bytes.
  std::vector<std::vector<std::string>> groups = {};
  int num_groups = 0;
  // true: sparse gradients are made dense in the hook. false (Average, Sum): they are reduced in
  // synchronize(), by an allgather of indices and values, and the new .grad is sparse and
  // coalesced. If one rank's is dense, all become so; but where one step's have been sparse on all
  // ranks, they stay sparse from then on.
  bool sparse_as_dense = true;
  // NaN or Inf in a gradient that is about to be reduced makes synchronize() throw on every rank,
  // naming parameter and rank. It costs one look at each gradient. Empty: HORON_CHECK_FINITE.
  std::optional<bool> check_finite = {};
};

// A bucket, for the functions that a program sets.
struct BucketView {
  int64_t index = 0;  // the same on all ranks
  std::string name;
  at::Tensor flat;  // one dimension, in the memory of the bucket: values may be changed
  std::vector<std::string> parameters;  // in the order in which they lie in `flat`
};

struct GradientStatistics {
  int64_t steps = 0;                  // calls of synchronize()
  int64_t buckets = 0;                // in one step
  int64_t submitted_in_backward = 0;  // buckets, over all steps; the others went in synchronize()
  int64_t late_parts = 0;             // gradients on this rank that came after their bucket
  double wait_seconds = 0;            // time spent in synchronize(): communication not hidden
};

class GradientReducer {
 public:
  // Parameters: leaves, dense, floating, in host memory; frozen ones may be unfrozen later. One
  // that is listed twice (tied) counts once, by its first name. Of a module: its parameters, not
  // its buffers. Local: no communication. Throws Error(NotInitialized); Error(InvalidArgument)
  // naming a parameter, an option, or a name that stands for two parameters.
  explicit GradientReducer(const NamedTensors& parameters, GradientReducerOptions options = {});
  explicit GradientReducer(const torch::nn::Module& module, GradientReducerOptions options = {});
  // Removes the hooks. Waits for buckets in flight, at most HORON_SHUTDOWN_TIMEOUT_S, and not while
  // an exception passes. Local, never throws. Gradients that were reduced stay in .grad.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Submits what is not under way yet, waits, and leaves the reduced gradients in .grad. Collective
  // over all ranks: each calls it as often as the others, also a rank that has run no backward().
  // A parameter that has been moved to another dtype or layout gets its place in new buckets first.
  // Throws, after everything has ended and a next step is possible: the first Error of a
  // collective; Error(InvalidArgument) naming a parameter whose .grad was written in flight;
  // Error(Mismatch) naming ranks that gave no weight.
  // Passes::All: throws Error(InvalidArgument) on all ranks, when the gradients have been reduced,
  // if some rank has run fewer than backward_passes_per_step. Passes::Any reduces what there is.
  enum class Passes : uint8_t { Any, All };
  void synchronize(Passes passes = Passes::Any);

  // The average of this step is weighted: sum over ranks of weight * gradient / sum of weights.
  // With the number of samples as weight, and each rank's loss the mean over its own, that is the
  // exact gradient of the mean over all samples. 0: this rank has none, and its gradients do not
  // count (they may be NaN). All 0: there is no gradient. Local; before the first backward() of
  // each step. For float16, gradient * weight must be in range: give weights near 1. Throws
  // Error(InvalidArgument).
  void set_weight(double weight);

  // While it lives, backward() adds to the gradients of this rank and submits nothing; the first
  // one after it does, with all that has come. Does not count in backward_passes_per_step.
  // synchronize() reduces in it as elsewhere.
  class NoSync {
   public:
    ~NoSync();
    NoSync(NoSync&&) noexcept = default;
    NoSync& operator=(NoSync&&) = delete;

   private:
    friend class GradientReducer;
    explicit NoSync(std::shared_ptr<std::atomic<int>> depth);
    std::shared_ptr<std::atomic<int>> depth_;
  };
  [[nodiscard]] NoSync no_sync();

  // Called for each bucket of each step when its gradients are complete and before it is submitted,
  // in backward() on the thread that completes it, else in synchronize(). One at a time; it must
  // not call the reducer. Gradients have been multiplied by the weight, if there is one. What it
  // throws makes the bucket fail on all ranks. Null: none.
  void before_bucket(std::function<void(const BucketView&)> function);
  // Called in synchronize() for each bucket with gradients, when `flat` holds what every .grad of
  // it will show. What it throws leaves synchronize() as Error when all buckets have been served.
  void after_bucket(std::function<void(const BucketView&)> function);

  // From now on these are reduced too, in buckets of their own. Between synchronize() calls; what
  // their .grad already holds is reduced by the next. The same on all ranks.
  void add_parameters(const NamedTensors& parameters);
  void add_parameters(const torch::nn::Module& module);

  // Tell it of a coming zero_grad(false) of the caller's: gradients in flight are taken out of the
  // way. zero_grad(true) needs no call.
  void before_zeroing_in_place();

  // A parameter whose gradient has come since the last synchronize(); empty if there is none.
  std::string unsynchronized_parameter() const;

  // The reducer's op over one number per rank (Average, weighted as the gradients of the last step
  // were, unless it is Sum). Collective.
  double reduce_number(double value);

  GradientStatistics statistics() const;
  // The same as statistics().wait_seconds.
  double exposed_wait_seconds() const;
  const std::string& name() const;

 private:
  std::unique_ptr<torch_detail::GradientEngine> engine_;
};

}  // namespace horon
