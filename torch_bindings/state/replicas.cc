#include "horon/torch_bindings/state/replicas.h"

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {
namespace {

using core::concat;

constexpr const char* kCureOfBuffers =
    " (a BatchNorm keeps running statistics of its rank's own batches: compare only "
    "named_parameters(), use SyncBatchNorm, or call "
    "broadcast_parameters(model->named_buffers()))";

torch_detail::Fact describe(const std::string& what, const std::string& name,
                            const at::Tensor& tensor) {
  torch_detail::check_tensor(torch_detail::real_memory(tensor), name);
  const at::Tensor rows = torch_detail::row_major(torch_detail::real_view(tensor)).cpu();
  torch_detail::Fingerprint content;
  content.add(rows.const_data_ptr(), rows.nbytes());
  return {what, torch_detail::type_and_shape(tensor, name), content.value()};
}

void compare(const NamedTensors& tensors, const NamedTensors& buffers, const ProcessSet& set) {
  const torch_detail::PlainMode plain;
  std::vector<torch_detail::Fact> facts;
  std::string own_error;
  torch_detail::UniqueNames names;
  const auto add = [&](const NamedTensors& list, const char* kind, const char* cure) {
    for (const auto& [name, tensor] : list) {
      try {
        const std::string what = concat(kind, " \"", name, "\"", cure);
        if (names.add({name, tensor})) facts.push_back(describe(what, name, tensor));
      } catch (...) {  // LibTorch's own errors too: there may be no memory for a copy
        if (own_error.empty()) own_error = core::current_error().what();
      }
    }
  };
  add(tensors, "tensor", "");
  add(buffers, "buffer", kCureOfBuffers);
  torch_detail::require_agreement("check_replicas_equal", facts, own_error, set);
}

}  // namespace

void check_replicas_equal(const NamedTensors& tensors, const ProcessSet& process_set) {
  compare(tensors, {}, process_set);
}

void torch_detail::check_module_replicas(const ::torch::nn::Module& module,
                                         const ProcessSet& process_set) {
  compare(NamedTensors::parameters_of(module), module.named_buffers(), process_set);
}

}  // namespace horon
