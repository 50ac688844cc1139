#include "horon/torch_bindings/modules/convert_sync_batchnorm.h"

#include <algorithm>
#include <memory>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/modules/sync_batch_norm.h"

namespace horon {
namespace {

using torch::nn::AnyModule;
using torch::nn::BatchNorm1dImpl;
using torch::nn::BatchNorm2dImpl;
using torch::nn::BatchNorm3dImpl;
using torch::nn::Module;
using Pointer = std::shared_ptr<Module>;

bool is_batch_norm(const Module& module) {
  return module.as<BatchNorm1dImpl>() != nullptr || module.as<BatchNorm2dImpl>() != nullptr ||
         module.as<BatchNorm3dImpl>() != nullptr;
}

// A class derived from BatchNorm may do something else than BatchNorm.
std::shared_ptr<SyncBatchNormImpl> synced(const Module& module, const ProcessSet& set) {
  const std::type_info& type = typeid(module);
  if (type == typeid(BatchNorm1dImpl)) {
    return std::make_shared<SyncBatchNormImpl>(*module.as<BatchNorm1dImpl>(), set);
  }
  if (type == typeid(BatchNorm2dImpl)) {
    return std::make_shared<SyncBatchNormImpl>(*module.as<BatchNorm2dImpl>(), set);
  }
  if (type == typeid(BatchNorm3dImpl)) {
    return std::make_shared<SyncBatchNormImpl>(*module.as<BatchNorm3dImpl>(), set);
  }
  return nullptr;
}

// Puts `after` where the container keeps `before` for its own use; false if it does not keep it, or
// is none. `after` null: only looks.
bool replace_in_container(Module& parent, const std::string& name, const Pointer& before,
                          const std::shared_ptr<SyncBatchNormImpl>& after) {
  if (auto* const sequential = parent.as<torch::nn::SequentialImpl>()) {
    const auto place =
        std::find_if(sequential->begin(), sequential->end(),
                     [&](const AnyModule& module) { return module.ptr() == before; });
    if (place == sequential->end()) return false;
    if (after != nullptr) *place = AnyModule(after);
    return true;
  }
  if (auto* const list = parent.as<torch::nn::ModuleListImpl>()) {
    const auto place = std::find(list->begin(), list->end(), before);
    if (place == list->end()) return false;
    if (after != nullptr) *place = after;
    return true;
  }
  if (auto* const dict = parent.as<torch::nn::ModuleDictImpl>()) {
    if (!dict->contains(name) || (*dict)[name] != before) return false;
    if (after != nullptr) dict->update({{name, after}});
    return true;
  }
  return false;
}

class Conversion {
 public:
  explicit Conversion(const ProcessSet& set) : set_(set) {}

  void find_in(Module& parent, const std::string& path) {
    for (const auto& child : parent.named_children()) {
      const std::string child_path =
          path.empty() ? child.key() : core::concat(path, ".", child.key());
      if (!is_batch_norm(*child.value())) {
        find_in(*child.value(), child_path);
        continue;
      }
      auto& after = synced_[child.value().get()];
      if (after == nullptr) after = synced(*child.value(), set_);
      const bool can =
          after != nullptr && replace_in_container(parent, child.key(), child.value(), nullptr);
      if (can) {
        found_.push_back({&parent, child.key(), child.value(), after});
      } else {
        refused_ += core::concat(refused_.empty() ? "" : ", ", '"', child_path, '"');
      }
    }
  }

  void refuse(const std::string& path) { refused_ = path; }

  void replace_all() {
    if (!refused_.empty()) {
      throw Error(
          ErrorCode::InvalidArgument,
          core::concat("convert_sync_batchnorm() can't replace ", refused_,
                       ": a class declares it as a member with a BatchNorm type, or its class is "
                       "derived from BatchNorm. Declare such members as "
                       "horon::SyncBatchNorm, or hold the BatchNorm in a Sequential. "
                       "Nothing has been replaced"));
    }
    for (const Found& found : found_) {
      replace_in_container(*found.parent, found.name, found.before, found.after);
      found.parent->replace_module(found.name, found.after);
    }
  }

 private:
  struct Found {
    Module* parent;
    std::string name;
    Pointer before;
    std::shared_ptr<SyncBatchNormImpl> after;
  };
  ProcessSet set_;
  std::vector<Found> found_;
  // A module that stands in two places is one module afterwards as well.
  std::unordered_map<const Module*, std::shared_ptr<SyncBatchNormImpl>> synced_;
  std::string refused_;
};

}  // namespace

void convert_sync_batchnorm(Module& model, const ProcessSet& process_set) {
  Conversion conversion(process_set);
  if (is_batch_norm(model)) conversion.refuse("the model, which is a BatchNorm itself");
  conversion.find_in(model, "");
  conversion.replace_all();
}

void convert_sync_batchnorm(AnyModule& model, const ProcessSet& process_set) {
  const Pointer held = model.ptr();
  if (const auto after = synced(*held, process_set)) {
    model = AnyModule(after);
    return;
  }
  convert_sync_batchnorm(*held, process_set);
}

}  // namespace horon
