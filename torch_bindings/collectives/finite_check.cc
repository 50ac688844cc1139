#include "horon/torch_bindings/collectives/finite_check.h"

#include <algorithm>

#include <ATen/ops/full.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/tensors/finite.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {
namespace {

bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  if (!tensor.is_floating_point() && !tensor.is_complex()) return true;
  at::Tensor values = tensor.is_sparse() ? tensor._values() : tensor;
  if (c10::isFloat8Type(values.scalar_type())) values = values.to(at::kFloat);
  return torch_detail::all_finite(torch_detail::real_memory(values));
}

}  // namespace

bool found_nonfinite(at::TensorList tensors, const FiniteCheckOptions& options) {
  const torch_detail::PlainMode plain;
  const std::string name = options.name.empty() ? "found_nonfinite" : options.name;
  const torch_detail::NameTurn turn(name, options.process_set.id());
  bool found = false;
  try {
    found = !std::all_of(tensors.begin(), tensors.end(), is_finite);
  } catch (...) {
    torch_detail::refuse_call(
        name, options.process_set,
        core::concat("\"", name, "\": a tensor can't be checked: ", core::current_error().what()));
  }
  const at::Tensor answer = at::full({1}, found ? 1 : 0, at::kByte);
  allreduce_(answer, {.name = name, .op = ReduceOp::Max, .process_set = options.process_set});
  return *answer.const_data_ptr<uint8_t>() != 0;
}

}  // namespace horon
