#include "horon/torch_bindings/state/replicas.h"

#include <string>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {
namespace {

using core::concat;

torch_detail::Fact describe(const std::string& name, const at::Tensor& tensor) {
  torch_detail::check_tensor(torch_detail::real_view(tensor), name);
  const at::Tensor rows = torch_detail::row_major(torch_detail::real_view(tensor)).cpu();
  torch_detail::Fingerprint content;
  content.add(rows.const_data_ptr(), rows.nbytes());
  return {concat("tensor \"", name, "\""), torch_detail::type_and_shape(tensor, name),
          content.value()};
}

}  // namespace

void check_replicas_equal(const NamedTensors& tensors, const ProcessSet& process_set) {
  const torch_detail::PlainMode plain;
  std::vector<torch_detail::Fact> facts;
  std::string own_error;
  torch_detail::UniqueNames names;
  for (const auto& [name, tensor] : tensors) {
    try {
      if (names.add({name, tensor})) facts.push_back(describe(name, tensor));
    } catch (const Error& error) {
      if (own_error.empty()) own_error = error.what();
    }
  }
  torch_detail::require_agreement("check_replicas_equal", facts, own_error, process_set);
}

}  // namespace horon
