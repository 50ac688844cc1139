// Reduces the gradients of a set of parameters over all ranks while backward() still runs.
//
// DistributedOptimizer is built on this; use it by itself with a training loop of your own:
//
//   horon::GradientReducer reducer(model->named_parameters());
//   loss.backward();          // full buckets are submitted from inside; when it returns, every
//                             // .grad that it has touched holds the reduced gradient
//   torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
//   reducer.synchronize();    // the step ends: costs nothing, unless this rank ran no backward()
//   optimizer.step();  optimizer.zero_grad();
//
// Rounds: the end of each backward() is a round, in which all ranks take part. In every step all
// ranks run backward() equally often. In a step of one backward() a rank may also run none: it
// takes part through synchronize(), without gradients. It must call that before other collectives
// of the program, since the others wait for it in backward(). If ranks differ otherwise, they get
// Error(Mismatch) that names the steps and the ranks. If several threads run backward() at the same
// time, the last to end reduces for all; where they do not always overlap, use WaitIn::Step.
//
// With {.wait_in = WaitIn::Step} only synchronize() (or step()) waits, once in a step, so that the
// program goes on while the last buckets travel. Between backward() and synchronize() a .grad may
// then not be read or written, and zero_grad() not be called on some ranks only. (Writes through
// .data(), as clip_grad_norm_() makes them, can't be detected.)
//
// A round makes one collective for each bucket and no other: what the ranks must know of each other
// travels behind the gradients, in the last bucket of each rank, which is submitted when backward()
// ends. One small collective comes before or after the buckets if a rank has something to agree on
// (a weight, a gradient to be reduced by itself, another order of buckets, an error), in the first
// round, and with WaitIn::Step or gradients that stay sparse.
//
// Gradients are reduced in buckets; .grad is a view of its bucket's memory, made by the hook that
// packs it, and is not copied out. (A rank that reduces with nobody keeps its own.) Only a .grad
// tensor that the program still holds when the next gradient comes gets memory of its own at that
// time. A view of it, as .detach() makes one, is overwritten: keep p.grad().clone(). And
// torch::save of a .grad writes the whole bucket.
//
// Everything that a plain program does with gradients works: zero_grad() of optimizer and module,
// in both forms; several backward() calls before a step, which add up; recomputation; retain_graph
// and create_graph (the reduced .grad has no graph: make a term of the loss from
// autograd::grad(), or call the first backward() in no_sync()); autograd::grad(), which is left
// alone; gradients that a program sets itself; sparse gradients. If .grad still holds the value of
// an earlier step, the new gradients are added to it.
//
// Parameters may have no gradient on some ranks (they count as zeros there) or on all (their .grad
// stays undefined, so that no optimizer moves them). What DDP calls find_unused_parameters is
// always on. It costs overlap: a bucket waits for the gradients that came in the same round of the
// step before. If one of them does not come, the bucket is held back until the end of backward(). A
// gradient that was not expected and comes after its bucket was submitted is reduced by itself,
// which costs two more small collectives, and one of its own size.
//
// Ranks that have called join() take part with zeros until all have; an average is then that of the
// others. With WaitIn::Step the buckets that a rank had submitted before still hold its gradients;
// a step with weights then throws Error(RankLeft). After that all ranks begin a new step. A
// gradient that a rank has by then, and whose bucket has not been submitted, counts in that step
// unless the program zeroes it; other gradients are lost, with Average together with what .grad
// held before them. Call zero_grad() before the next epoch: a .grad that is left is that of unlike
// steps, and with Sum each rank would add its own.
//
// A reducer belongs to the session in which it was made. In another one (a program that owns MPI
// may call init() again) it throws Error(InvalidArgument): make a new one there.
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
class OptimizerSteps;
class ShardOwners;
}  // namespace torch_detail

// Who waits for the reduction of gradients.
enum class WaitIn : uint8_t {
  Backward,  // backward(): as in DDP, gradients are reduced when it returns
  Step,      // step() or synchronize(): as in Horovod
};

// Whether DistributedOptimizer makes the step of SGD, Adam, AdamW or Adagrad in one pass over
// parameters, gradients and state, instead of the optimizer's one pass for each operation. The
// state stays the optimizer's.
enum class FusedStep : uint8_t {
  WhereBitEqual,  // where the result is the same to the last bit: SGD, in float32 and float64
  // Also Adam, AdamW and Adagrad: they differ from the optimizer's own step by rounding, a few last
  // bits, which add up over steps.
  WherePossible,
  Never,  // the optimizer's own step
};

// The same on all ranks of the process set.
struct GradientReducerOptions {
  // What its collectives are called on all ranks. Empty: "gradients.N", counted by construction,
  // for each process set by itself and anew in each session.
  std::string name = {};
  // Min, Max and Product exist for the curious; gradients are summed or averaged.
  ReduceOp op = ReduceOp::Average;
  // The ranks that reduce with each other. On the others the reducer does nothing: gradients stay
  // what backward() has made them, and synchronize() returns.
  ProcessSet process_set = {};

  // Bytes; empty: HORON_BUCKET_BYTES and HORON_FIRST_BUCKET_BYTES.
  std::optional<int64_t> bucket_bytes = {};
  std::optional<int64_t> first_bucket_bytes = {};
  // true: gradients that come one after another share a bucket, in the order that the lowest rank
  // has seen in its first step; it is learned anew when parameters have changed. The buckets are
  // made anew once, and only if they then start clearly sooner than in the reverse order of the
  // parameters. Not while the lowest rank has functions before or after buckets, nor with CUDA
  // graphs.
  bool learn_bucket_order = true;
  // Buckets are reduced in pieces, in shared memory and between hosts, also those of GPUs that go
  // through the host. Bytes of a piece, within the limits of the collective; 0: the collective
  // chooses. It does not change the bits of the result. Empty: HORON_PIECE_BYTES.
  std::optional<int64_t> piece_bytes = {};
  // float32 and complex64 gradients travel in 16 bits (each part of a complex number), or between
  // hosts in blocks of int8, and are summed in float32. Other dtypes ignore it.
  Compression compression = Compression::None;
  // k backward passes make one step: their gradients add up on this rank, and buckets are submitted
  // in the k-th pass. The sum over the passes is not divided by k; see the next option. Passes are
  // counted for each parameter by its gradients, so that a parameter with several in a pass
  // (recomputation) counts them all. More than k passes are correct too, and cost another
  // reduction.
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
  // true: sparse gradients are made dense in the hook. false (Average, Sum): they are reduced at
  // the end of a round (by default in backward()), by an allgather of indices and values; the new
  // .grad is sparse and coalesced. If one rank's gradient is dense, it becomes dense on all; but
  // once a round's gradients were sparse on all ranks, they stay sparse.
  bool sparse_as_dense = true;
  // NaN or Inf in a gradient makes the end of its round (by default backward()) throw on every
  // rank, naming parameter and rank. It reads each gradient once more. Empty: HORON_CHECK_FINITE.
  std::optional<bool> check_finite = {};
  WaitIn wait_in = WaitIn::Backward;
  // In each round the ranks compare a sample of the parameters, within messages that they send
  // anyway. If the replicas have gone apart, all ranks throw Error(Mismatch) that names a parameter
  // and the ranks. Small differences, as rounding on unlike CPUs makes them, are no error. Empty:
  // HORON_CHECK_REPLICAS (on). Parameters on a GPU are left out, since the host would have to wait
  // for them, and so are sets where only some ranks have a GPU: check_replicas_equal() compares
  // those.
  std::optional<bool> check_replicas = {};
  // Of DistributedOptimizer; a reducer makes no steps. Where a step can't be fused (sparse
  // gradients, 16-bit parameters, other layouts), the optimizer makes it, and fused_step_refusal()
  // says why.
  FusedStep fused_step = FusedStep::WhereBitEqual;

  // The rest is of DistributedOptimizer as well: what step() does to the reduced gradients of all
  // its parameters before the optimizer uses them, in this order. .grad shows it after the step. A
  // fused step does it in its own pass. Not for optimizers that call the closure of step(closure)
  // themselves, as LBFGS does.
  //
  // Gradients are divided by this: the loss was multiplied by it (loss scaling). Above 0.
  double grad_scale = 1;
  // If a gradient holds NaN or Inf, the step is not made, on any rank: parameters and the
  // optimizer's state stay as they are, and step_skipped() says so. Not together with check_finite,
  // whose knob it overrules.
  bool skip_nonfinite = false;
  // The largest L2 norm of all gradients together; larger ones are scaled down to it, as
  // torch::nn::utils::clip_grad_norm_() would. Above 0; infinity: the norm is only computed.
  std::optional<double> clip_grad_norm = {};
  // The largest absolute value of an element of a gradient, as clip_grad_value_() has it. Above 0;
  // not together with a clip_grad_norm that clips, nor for complex parameters. It takes a pass of
  // its own, also where the step is fused; a NaN stays.
  std::optional<double> clip_grad_value = {};

  // Of DistributedOptimizer<Opt> as well. The state of the optimizer (momentum, ...) is shared out
  // over the ranks of the process set, as in stage 1 of ZeRO: each rank keeps the state of about
  // 1/ranks of the parameters, makes the step of those, and broadcasts them. The parameters are the
  // same bits as without it. Only for optimizers that treat each parameter by itself, leave one
  // without a gradient alone and keep their state in state(), as all but LBFGS do; and only for
  // parameters that share no memory. Once a rank has joined, step() throws Error(RankLeft), and
  // nothing has moved.
  bool shard_optimizer_state = false;
  // With shard_optimizer_state: each gradient is reduced to the rank that keeps the state of its
  // parameter and to no other, by a reducescatter of each bucket, so that a step sends as much as
  // with neither option. On the other ranks .grad is undefined when backward() returns. What has to
  // see all gradients must use the options above or GradScaler, which know of it;
  // torch::nn::utils::clip_grad_norm_() does not. Not with Int8, sparse_as_dense = false,
  // after_bucket() and AdaScale. Once a rank has joined, backward() throws Error(RankLeft).
  bool shard_gradients = false;
};

// A bucket, for the functions that a program sets.
struct BucketView {
  int64_t index = 0;  // the same on all ranks
  std::string name;
  at::Tensor flat;  // one dimension, in the memory of the bucket: values may be changed
  std::vector<std::string> parameters;  // in the order in which they lie in `flat`
};

struct GradientStatistics {
  int64_t steps = 0;                  // rounds: one for each backward(), or each synchronize()
  int64_t buckets = 0;                // in one round
  int64_t reorders = 0;               // times that the buckets were made anew, reordered
  int64_t piece_bytes = 0;            // in use now, as autotuning has set it; 0: not set
  int64_t submitted_in_backward = 0;  // buckets that were complete before the end of the round
  int64_t late_parts = 0;             // gradients on this rank that came after their bucket
  double wait_seconds = 0;            // waiting at the ends of rounds: communication not hidden
};

class GradientReducer {
 public:
  // Parameters: leaves, dense, floating or complex (64 and 128 bits; Average and Sum), all on the
  // CPU or all on the rank's GPU; frozen ones may be unfrozen later. Those of other dtypes may only
  // stay frozen. One that is listed twice (tied) counts once, by its first name. Of a module: its
  // parameters, not its buffers. Local: no communication. Throws Error(NotInitialized);
  // Error(InvalidArgument) naming a parameter, an option (also one that is for DistributedOptimizer
  // alone), or a name that stands for two parameters.
  explicit GradientReducer(const NamedTensors& parameters, GradientReducerOptions options = {});
  explicit GradientReducer(const torch::nn::Module& module, GradientReducerOptions options = {});
  // Removes the hooks. Waits for buckets in flight, at most HORON_SHUTDOWN_TIMEOUT_S, and not while
  // an exception passes. Local, never throws. Gradients that were reduced stay in .grad.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // The end of a step: reduces what backward() has not reduced, which is everything with
  // WaitIn::Step, in no_sync() and on a rank that has run no backward(). Each rank calls it as
  // often as the others. A parameter that has been moved to another dtype or layout gets its place
  // in new buckets first. Throws, as backward() does, after everything has ended and a next step is
  // possible: the first Error of a collective; Error(InvalidArgument) naming a parameter whose
  // .grad was written in flight; Error(Mismatch) naming ranks that gave no weight, a parameter that
  // differs between the ranks, or ranks that have run backward() more often than others.
  // Passes::All: throws Error(InvalidArgument) on all ranks, when the gradients have been reduced,
  // if some rank has run fewer than backward_passes_per_step. Passes::Any reduces what there is.
  enum class Passes : uint8_t { Any, All };
  void synchronize(Passes passes = Passes::Any);

  // The average of this step is weighted: sum over ranks of weight * gradient / sum of weights.
  // With the number of samples as weight, and each rank's loss the mean over its own, that is the
  // exact gradient of the mean over all samples, if a loss depends on this rank's samples alone.
  // (In the backward of SyncBatchNorm and horon::autograd ranks add up gradients that are not
  // weighted yet: there let the loss be the sum over this rank's samples times ranks / all samples,
  // and set no weight.) 0: this rank has none, and its gradients do not count (they may be NaN).
  // All 0: there is no gradient. Local; before the backward() that it is for, and for those after
  // it until the step ends. For float16, gradient * weight must be in range: give weights near 1.
  // Throws Error(InvalidArgument).
  void set_weight(double weight);

  // While it lives, backward() adds to the gradients of this rank and submits nothing; the first
  // backward() after it submits all that has come. Passes in it do not count in
  // backward_passes_per_step. synchronize() reduces in it as elsewhere.
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

  // Called for each bucket of each round when its gradients are complete and before it is
  // submitted, on the thread that completes it, else where the round ends. One at a time; it must
  // not call the reducer. Gradients have been multiplied by the weight, if there is one; what .grad
  // held before the round (another backward() of the step) is in them, except with Sum or
  // shard_gradients, which add it afterwards. What it throws makes the bucket fail on all ranks.
  // Null: none.
  void before_bucket(std::function<void(const BucketView&)> function);
  // Called at the end of each round for each bucket with gradients, when `flat` holds what every
  // .grad of it will show. What it throws leaves backward() or synchronize() as Error after the
  // calls for all buckets. It does so on this rank alone: end the step with synchronize() or step()
  // all the same. Throws Error(InvalidArgument) with shard_gradients.
  void after_bucket(std::function<void(const BucketView&)> function);

  // k backward passes make one step from now on (a larger batch by accumulation). Between steps;
  // the same on all ranks. Throws Error(InvalidArgument).
  void set_backward_passes_per_step(int passes);

  // From now on the gradients of these are reduced too, in buckets of their own. Between
  // synchronize() calls; what their .grad already holds is reduced by the next one. The same on all
  // ranks.
  void add_parameters(const NamedTensors& parameters);
  void add_parameters(const torch::nn::Module& module);

  // With WaitIn::Step, call this before a zero_grad(false) of your own: it takes gradients in
  // flight out of the way. zero_grad(true) needs no call.
  void before_zeroing_in_place();

  // The next round reduces once more what .grad holds of the last one: as this rank's gradient,
  // together with new ones. (Else it counts as a value that all ranks have, and stays.) Between
  // rounds, on all ranks.
  void count_gradients_as_new();

  // A parameter whose gradient has come since the last round; empty if there is none.
  std::string unsynchronized_parameter() const;

  // Reduces one number per rank: their sum if the op is Sum, else their average, weighted as the
  // gradients of the last step were. Collective.
  double reduce_number(double value);
  // The same where ranks may have no number, which counts as none: the mean is that of the others.
  // Empty if no rank has one.
  std::optional<double> reduce_number_if_any(const std::optional<double>& value);
  // For a rank that can't take part: the others' call throws an Error with this text.
  void refuse_number(const std::string& why);
  // For steps that run a closure, which reduces gradients, and call reduce_number() after it: each
  // evaluation begins with this. Waits for what an evaluation that was given up has left behind.
  // Returns the argument of leave_evaluation().
  int64_t begin_evaluation();
  // For the handler of what an evaluation has thrown. If the others wait for gradients of this
  // rank, their round fails with an error that names it. Returns true if they wait for its number
  // instead. An evaluation is assumed to have as many rounds as in the step before.
  bool leave_evaluation(int64_t rounds);

  // Those of the constructor, with what set_backward_passes_per_step() has changed.
  const GradientReducerOptions& options() const;
  GradientStatistics statistics() const;
  // The same as statistics().wait_seconds.
  double exposed_wait_seconds() const;
  const std::string& name() const;

 private:
  friend class torch_detail::OptimizerSteps;
  class Impl;
  struct ForOptimizer {};
  // `owners`: of these parameters, and of those that will be added, where gradients have owners.
  GradientReducer(ForOptimizer, const NamedTensors& parameters,
                  const GradientReducerOptions& options,
                  std::shared_ptr<const torch_detail::ShardOwners> owners);
  std::unique_ptr<Impl> impl_;
};

}  // namespace horon
