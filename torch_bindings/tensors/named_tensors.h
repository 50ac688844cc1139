// A list of tensors with names: the argument of every call that is about a model's tensors.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace horon {

// Constructed implicitly where a function takes one: f(*model), f(model->named_parameters()),
// f({{"weight", w}, {"bias", b}}). Holds the tensors (as handles), in the order given.
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
  // The module's parameters and buffers (running means and the like).
  NamedTensors(const torch::nn::Module& module);
  // For a program that gives what holds its module, as torch::save() takes it: without these, the
  // compiler lists all constructors, and none of them tells the cure.
  template <class Contained>
  NamedTensors(const torch::nn::ModuleHolder<Contained>&) {
    static_assert(std::is_void_v<Contained>, "give the module itself: *model instead of model");
  }
  template <class Held>
  NamedTensors(const std::shared_ptr<Held>&) {
    static_assert(std::is_void_v<Held>, "give the module itself: *model instead of model");
  }
  // The module's parameters alone.
  static NamedTensors parameters_of(const torch::nn::Module& module);

  void emplace_back(std::string name, at::Tensor tensor) {
    items_.emplace_back(std::move(name), std::move(tensor));
  }
  void append(const torch::OrderedDict<std::string, at::Tensor>& items);

  size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  const Item& operator[](size_t index) const { return items_[index]; }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<Item> items_;
};

namespace torch_detail {

// The names of tensors that one call has seen: no name may stand for two tensors. One tensor may
// have two names (tied weights).
class UniqueNames {
 public:
  // `what` the tensors are called in the error ("tensor", "parameter"). Throws
  // Error(InvalidArgument) that shows the name and both tensors, if another tensor has this name.
  // True if the name is new, false if it stood for this tensor before.
  bool add(const NamedTensors::Item& item, const char* what = "tensor");

 private:
  std::map<std::string, at::Tensor> seen_;
};

}  // namespace torch_detail
}  // namespace horon
