// What loss scaling (amp/grad_scaler.h) asks of a DistributedOptimizer, whatever it is made of.
#pragma once

namespace horon::torch_detail {

class ScaledSteps {
 public:
  virtual ~ScaledSteps() = default;

  // Reduces what backward() has not reduced. Collective.
  virtual void synchronize() = 0;

  // From the next step on; the same on all ranks. GradientReducerOptions says what they mean.
  virtual void set_grad_scale(double scale) = 0;
  virtual void set_skip_nonfinite(bool skip) = 0;
  virtual double grad_scale() const = 0;
  virtual bool skip_nonfinite() const = 0;
  // The last step was left out: on all ranks.
  virtual bool step_skipped() const = 0;
};

}  // namespace horon::torch_detail
