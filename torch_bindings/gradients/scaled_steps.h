// What loss scaling (amp/grad_scaler.h) and AdaScale ask of a DistributedOptimizer, whatever it is
// made of.
#pragma once

#include <functional>
#include <optional>

namespace horon {
struct BucketView;
}

namespace horon::torch_detail {

class ScaledSteps {
 public:
  virtual ~ScaledSteps() = default;

  // Reduces what backward() has not reduced, before a step. Collective. Throws what that step would
  // throw if passes are missing.
  virtual void synchronize_for_step() = 0;

  // From the next step on; the same on all ranks. GradientReducerOptions says what they mean.
  virtual void set_grad_scale(double scale) = 0;
  virtual void set_skip_nonfinite(bool skip) = 0;
  virtual double grad_scale() const = 0;
  virtual bool skip_nonfinite() const = 0;
  // What a GradScaler has divided the gradients of this step by since they were reduced. The next
  // round and the end of the step forget it.
  virtual void note_unscaled(double scale) = 0;
  virtual std::optional<double> unscaled_by() const = 0;
  // Instead of a step, on all ranks: the gradients are given up, and the next step begins.
  virtual void leave_out() = 0;
  // With shard_gradients: whether some rank has found something in its gradients; collective. Else
  // returns nothing, without calling `found`.
  virtual std::optional<bool> found_by_owners(const std::function<bool()>& found) = 0;
  // The last step was left out: on all ranks.
  virtual bool step_skipped() const = 0;

  // Called for each bucket in which this rank has gradients before it is submitted, and after
  // before_bucket(), which stays the program's. Null: none.
  virtual void on_submitted(std::function<void(const BucketView&)> function) = 0;
  // Called for each bucket when it has been reduced, before the program can change it. As in
  // before_bucket(), it does not hold the older values of a sum. Null: none.
  virtual void on_reduced(std::function<void(const BucketView&)> function) = 0;
};

}  // namespace horon::torch_detail
