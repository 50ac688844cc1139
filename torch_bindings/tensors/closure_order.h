// When an optimizer calls the closure of step(closure).
#pragma once

namespace horon::torch_detail {

// Base of optimizers that call it once, before anything else. A DistributedOptimizer calls it for
// them and reduces, so that clipping and loss scaling come before the step.
class CallsClosureFirst {
 protected:
  ~CallsClosureFirst() = default;
};

}  // namespace horon::torch_detail
