// An optimizer whose step() is collective by itself, and goes by this rank's own gradients.
#pragma once

namespace horon::torch_detail {

class CollectiveStep {
 public:
  // In the place of a step, on a rank that has no gradients to make it by: the others wait for it.
  // Collective, with step() on them. Throws as step().
  virtual void move_by_others() = 0;

 protected:
  ~CollectiveStep() = default;
};

}  // namespace horon::torch_detail
