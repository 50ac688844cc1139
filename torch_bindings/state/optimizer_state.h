// Divides the state of LibTorch's own optimizers into a few bytes and its tensors, and rebuilds it
// from them in another process.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace torch::optim {
class Optimizer;
class OptimizerParamState;
}  // namespace torch::optim

namespace horon::torch_detail {

// SGD, Adam, AdamW, Adagrad, RMSprop or LBFGS, plain or in a DistributedOptimizer; not a class that
// is derived from one of them, which may keep more.
bool is_known_optimizer(const torch::optim::Optimizer& optimizer);

// The device of the first parameter, where the state belongs; the CPU if there are no parameters.
c10::Device device_of_parameters(const torch::optim::Optimizer& optimizer);

struct TakenApart {
  std::string bytes;  // options of the groups, numbers, dtypes and shapes of the tensors
  std::vector<at::Tensor> tensors;  // defined ones; of a sparse one its indices and values
};

// Of a known optimizer. The tensors share memory with its state. Throws what LibTorch throws.
TakenApart take_apart(torch::optim::Optimizer& optimizer);

// Gives any optimizer what its save() has written and nothing else. (Its load() alone would keep
// the state of parameters that the archive lacks.) Tensors go to the device of the first parameter.
// If load() throws, the state is what it was before.
void load_saved(torch::optim::Optimizer& optimizer, const std::string& bytes);

// Rebuilds in two steps, so that the optimizer changes only when all tensors have arrived.
class PutTogether {
 public:
  // Makes tensors without values, in the order of take_apart(). The optimizer is of the same type,
  // with as many groups and parameters.
  PutTogether(torch::optim::Optimizer& optimizer, std::string bytes);

  std::vector<at::Tensor>& tensors() { return tensors_; }
  // Drops the state that the optimizer has, and gives it this one, and the options.
  void install();

 private:
  torch::optim::Optimizer& optimizer_;
  const std::string bytes_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>> entries_;
};

}  // namespace horon::torch_detail
