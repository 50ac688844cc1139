// An optimizer whose step() is collective by itself, and goes by this rank's own gradients.
#pragma once

namespace horon::torch_detail {

class CollectiveStep {
 public:
  // Called instead of step() on a rank that has no gradients for a step: the others wait for it in
  // their step(). Collective, with step() on them. Throws as step().
  virtual void move_by_others() = 0;

 protected:
  ~CollectiveStep() = default;
};

}  // namespace horon::torch_detail
