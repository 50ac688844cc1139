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
// gradients (made dense); parameters without a gradient on some ranks (zeros there) or on all
// (their .grad stays undefined, so that no optimizer moves them). If .grad still holds the value of
// an earlier step, the new gradients are added to it.
//
// Order: parameters with the same names, shapes, dtypes and strides, in the same order, on every
// rank; reducers are constructed in the same order unless they have names. Ranks may compute
// gradients in different orders, and of different parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"

namespace horon {

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

struct GradientReducerOptions {
  // Min, Max and Product exist for the curious; gradients are summed or averaged.
  ReduceOp op = ReduceOp::Average;
  // Bytes; empty: HORON_BUCKET_BYTES and HORON_FIRST_BUCKET_BYTES. The same on all ranks.
  std::optional<int64_t> bucket_bytes = {};
  std::optional<int64_t> first_bucket_bytes = {};
  // What its collectives are called on all ranks. Empty: "gradients.N", counted by construction.
  std::string name = {};
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
  // that is listed twice (tied) counts once, by its first name. Local: no communication. Throws
  // Error(NotInitialized); Error(InvalidArgument) naming a parameter.
  explicit GradientReducer(const NamedParameters& parameters, GradientReducerOptions options = {});
  // Removes the hooks. Waits for buckets in flight, at most HORON_SHUTDOWN_TIMEOUT_S, and not while
  // an exception passes. Local, never throws. Gradients that were reduced stay in .grad.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Submits what is not under way yet, waits, and leaves the reduced gradients in .grad. Collective
  // over all ranks: each calls it as often as the others, also a rank that has run no backward().
  // A parameter that has been moved to another dtype or layout gets its place in new buckets first.
  // Throws, after everything has ended and a next step is possible: the first Error of a
  // collective; Error(InvalidArgument) naming a parameter whose .grad was written in flight.
  void synchronize();

  // From now on these are reduced too, in buckets of their own. Between synchronize() calls; what
  // their .grad already holds is reduced by the next. The same on all ranks.
  void add_parameters(const NamedParameters& parameters);

  // Tell it of a coming zero_grad(false) of the caller's: gradients in flight are taken out of the
  // way. zero_grad(true) needs no call.
  void before_zeroing_in_place();

  // A parameter whose gradient has come since the last synchronize(); empty if there is none.
  std::string unsynchronized_parameter() const;

  // The reducer's op over one number per rank (Average unless it is Sum). Collective.
  double reduce_number(double value);

  GradientStatistics statistics() const;
  // The same as statistics().wait_seconds.
  double exposed_wait_seconds() const;
  const std::string& name() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horon
