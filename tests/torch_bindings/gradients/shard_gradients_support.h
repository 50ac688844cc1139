// The same training with gradients that are reduced to the owners of their parameters alone, and
// with all reduced gradients on each rank.
#pragma once

#include <utility>
#include <vector>

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "horon/tests/torch_bindings/gradients/sharded_support.h"

namespace horon::testing_support {

inline DistributedOptimizerOptions to_owners(DistributedOptimizerOptions options = {}) {
  options = sharded(std::move(options));
  options.shard_gradients = true;
  return options;
}

// Two trainings of the same model, whose gradients are whole in the second one.
template <class Opt>
struct Pair {
  template <class Make>
  Pair(const Make& make, const DistributedOptimizerOptions& options, at::ScalarType dtype)
      : net(make_net(dtype)),
        optimizer(make(net->parameters()), *net, options),
        expected(make_net(dtype)),
        whole(make(expected->parameters()), *expected, without_shards(options)) {}

  static DistributedOptimizerOptions without_shards(DistributedOptimizerOptions options) {
    options.shard_gradients = options.shard_optimizer_state = false;
    return options;
  }
  // Both trainings run `step(net, optimizer)`.
  template <class Step>
  void both(const Step& step) {
    step(net, optimizer);
    step(expected, whole);
  }

  Net net;
  DistributedOptimizer<Opt> optimizer;
  Net expected;
  DistributedOptimizer<Opt> whole;
};

inline Pair<::torch::optim::SGD> sgd(const DistributedOptimizerOptions& options,
                                     at::ScalarType dtype = at::kFloat) {
  const auto make = [](std::vector<at::Tensor> parameters) {
    return ::torch::optim::SGD(std::move(parameters),
                               ::torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  return {make, options, dtype};
}

inline Pair<::torch::optim::AdamW> adam(const DistributedOptimizerOptions& options) {
  const auto make = [](std::vector<at::Tensor> parameters) {
    return ::torch::optim::AdamW(std::move(parameters), 1e-2);
  };
  return {make, options, at::kFloat};
}

inline void step_on(Net& net, ::torch::optim::Optimizer& optimizer, int step, double factor = 1) {
  const at::ScalarType dtype = net->out->weight.scalar_type();
  (loss_of(net, shard_of(batch_of(step, dtype))) * factor).backward();
  optimizer.step();
}

}  // namespace horon::testing_support
