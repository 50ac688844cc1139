#include "horon/torch_bindings/python/process_group/flat_tensors.h"

#include <ATen/ops/cat.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::python::process_group {
namespace {

using core::concat;

void note_write(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().reshape({-1}); }

at::Tensor flat(const Tensors& tensors) {
  Tensors rows;
  rows.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) rows.push_back(flat(tensor));
  return at::cat(rows);
}

at::Tensor flat_output(const at::Tensor& output) {
  if (!output.is_contiguous() || output.is_neg() || output.is_conj()) return {};
  return output.detach().view({-1});
}

at::Tensor flat_output_beside(const at::Tensor& input, const at::Tensor& output) {
  return output.is_alias_of(input) ? at::Tensor() : flat_output(output);
}

std::vector<int64_t> element_counts(const Tensors& tensors) {
  std::vector<int64_t> counts;
  counts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

void copy_flat(const at::Tensor& rows, const at::Tensor& output, const std::string& name) {
  if (rows.numel() != output.numel()) {
    throw Error(ErrorCode::Mismatch, concat("tensor \"", name, "\": the result has ", rows.numel(),
                                            " elements, but the output has ", output.numel()));
  }
  output.copy_(rows.view(output.sizes()));
  note_write(output);
}

void copy_flat(const at::Tensor& rows, const std::vector<int64_t>& rows_from,
               const Tensors& outputs, const std::string& name) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (rows_from.at(i) == outputs[i].numel()) continue;
    throw Error(ErrorCode::Mismatch,
                concat("tensor \"", name, "\": rank ", i, " of the group sent ", rows_from[i],
                       " elements, but output ", i, " has ", outputs[i].numel()));
  }
  int64_t begin = 0;
  for (const at::Tensor& output : outputs) {
    output.copy_(rows.slice(0, begin, begin + output.numel()).view(output.sizes()));
    note_write(output);
    begin += output.numel();
  }
}

}  // namespace horon::python::process_group
