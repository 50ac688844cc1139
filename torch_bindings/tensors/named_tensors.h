// A list of tensors with names, from whatever a program has them in.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

namespace torch::nn {
class Module;
}

namespace horon {

// Made on the fly where a function takes one: f(*model), f(model->named_parameters()),
// f({{"weight", w}, {"bias", b}}). Holds the tensors, in the order in which they were given.
class NamedTensors {
 public:
  using Item = std::pair<std::string, at::Tensor>;

  NamedTensors() = default;
  NamedTensors(std::initializer_list<Item> items) : items_(items) {}
  NamedTensors(std::vector<Item> items) : items_(std::move(items)) {}
  NamedTensors(const std::map<std::string, at::Tensor>& items)
      : items_(items.begin(), items.end()) {}
  NamedTensors(const torch::OrderedDict<std::string, at::Tensor>& items) { append(items); }
  // Named "0", "1", ...
  NamedTensors(const std::vector<at::Tensor>& tensors);
  NamedTensors(std::initializer_list<at::Tensor> tensors)
      : NamedTensors(std::vector<at::Tensor>(tensors)) {}
  // Its parameters and buffers (running means and the like).
  NamedTensors(const torch::nn::Module& module);

  void append(const torch::OrderedDict<std::string, at::Tensor>& items);

  size_t size() const { return items_.size(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<Item> items_;
};

}  // namespace horon
