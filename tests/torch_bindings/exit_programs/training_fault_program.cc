// The fault matrix in backward: a training program of which one rank goes wrong in the middle of a
// backward pass, when half of its gradients have been handed over. See tests/support/fault_job.h.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/sgd.h>

#include "horon/tests/support/fault_job.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/session.h"

namespace {

constexpr int kLayers = 8;
constexpr int64_t kWidth = 256;
constexpr int kSteps = 400;
constexpr int kStepOfFault = 10;

struct Hook : ::torch::autograd::PostAccumulateGradHook {
  explicit Hook(std::function<void()> a) : action(std::move(a)) {}
  void operator()(const at::Tensor&) override { action(); }
  std::function<void()> action;
};

void train(const horon::testing_support::FaultJob& job) {
  std::vector<at::Tensor> layers;
  horon::NamedTensors named;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back(at::eye(kWidth).requires_grad_(true));
    named.emplace_back("layer" + std::to_string(i), layers.back());
  }
  // A bucket for each layer.
  auto optimizer = horon::DistributedOptimizer(::torch::optim::SGD(layers, 1e-6), named,
                                               {.bucket_bytes = 1, .first_bucket_bytes = 1});
  int step = 0;
  if (job.is_guilty()) {
    ::torch::autograd::impl::set_post_acc_grad_hooks(layers[kLayers / 2],
                                                     std::make_unique<Hook>([&] {
                                                       if (step == kStepOfFault) job.do_fault();
                                                     }));
  }
  for (; step < kSteps; ++step) {
    optimizer.zero_grad();
    at::Tensor x = at::ones({4, kWidth});
    for (const at::Tensor& layer : layers) x = at::tanh(at::matmul(x, layer));
    x.sum().backward();
    optimizer.step();
  }
}

}  // namespace

int main(int argc, char** argv) {
  horon::init();
  const horon::testing_support::FaultJob job(argc, argv);
  return job.run([&] { train(job); });
}
