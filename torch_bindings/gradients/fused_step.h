// The step of LibTorch's own optimizers in one pass over parameters, gradients and state.
//
// The state stays where the optimizer keeps it, so that each step may be made here or by the
// optimizer, and save, load and broadcast need not know.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/gradients/sgd_kernel.h"

namespace horon::torch_detail {

// Why a step can't be made in one pass.
struct FusedRefusal {
  std::string why;  // empty: it can
  // Of which parameter: its group, its index there.
  std::optional<std::pair<size_t, size_t>> parameter = {};
};

// SGD, Adam, AdamW, Adagrad, plain or in a DistributedOptimizer, with dense gradients of float32 or
// float64 in host memory that lie as their parameter does; Adam and AdamW on a GPU too, with
// LibTorch's kernels. State that lies otherwise is laid out anew.
class FusedUpdate {
 public:
  explicit FusedUpdate(FusedStep wish) : wish_(wish) {}

  void set_wish(FusedStep wish) { wish_ = wish; }
  // Whether update() could be right for this type of optimizer: if not, there is no need to try.
  bool knows(const ::torch::optim::Optimizer& optimizer);
  // Makes the step and returns true; or changes nothing, returns false, and refusal() says why.
  // Parameters without a gradient are left alone.
  // Gradients are multiplied by `gradient_factor` first, in .grad too, each as often as its
  // parameter is listed in the groups.
  bool update(::torch::optim::Optimizer& optimizer, double gradient_factor = 1);

  // Of the last step.
  const FusedRefusal& refusal() const { return refusal_; }
  // The last step was made here, and the optimizer's own would have differed in the last bits.
  bool rounded_otherwise() const { return rounded_otherwise_; }

 private:
  FusedStep wish_;
  FusedRefusal refusal_;
  bool rounded_otherwise_ = false;
};

// The kernel that gives the bits of torch::optim::SGD on this machine, found by trying; null if
// none does.
const SgdKernel* bit_equal_sgd_kernel();

}  // namespace horon::torch_detail
