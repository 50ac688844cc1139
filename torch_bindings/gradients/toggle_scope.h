// For programs with several optimizers (GANs): one of them trains, the parameters of the others
// rest.
//
//   {
//     horon::ToggleScope train_generator(generator_optimizer, {&discriminator_optimizer});
//     adversarial_loss(discriminator->forward(generator->forward(noise))).backward();
//   }                                  // the discriminator has got no gradients
//   generator_optimizer.step();
//
// It is never needed for right results: gradients that land on the other's parameters may be thrown
// away by zero_grad() instead. It saves their computation and their way over the network.
#pragma once

#include <initializer_list>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace horon {

// While it lives, the parameters of `others` that `active` does not have need no gradient; then
// those that needed one do again. Local, but every rank must do the same. The optimizers need not
// be Horon's. Scopes may be nested. With optimizer.no_sync() beside it gradients stay on this rank.
class ToggleScope {
 public:
  ToggleScope(const torch::optim::Optimizer& active,
              std::initializer_list<const torch::optim::Optimizer*> others);
  ~ToggleScope();
  ToggleScope(const ToggleScope&) = delete;
  ToggleScope& operator=(const ToggleScope&) = delete;

 private:
  std::vector<at::Tensor> resting_;
};

}  // namespace horon
