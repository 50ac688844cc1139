#include "horon/torch_bindings/python/process_group/given_tensors.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::python::process_group {
namespace {

using torch_detail::PendingCollective;

template <class... Parts>
[[noreturn]] void refuse(const PendingCollective& pending, const Parts&... why) {
  pending.refuse(
      Error(ErrorCode::InvalidArgument, core::concat("tensor \"", pending.name, "\": ", why...)));
}

}  // namespace

void require_outputs(const PendingCollective& pending, size_t outputs, size_t members) {
  if (outputs == members) return;
  refuse(pending, "a list of ", outputs, " tensors is given for the ", members,
         " ranks of the group; give one for each rank");
}

void require_lists(const PendingCollective& pending, const std::vector<Tensors>& lists,
                   size_t members, size_t inputs) {
  if (lists.size() != members) {
    refuse(pending, lists.size(), " lists of outputs are given for the ", members,
           " ranks of the group; give one for each rank");
  }
  for (const Tensors& list : lists) require_results(pending, list.size(), inputs);
}

void require_results(const PendingCollective& pending, size_t outputs, size_t inputs) {
  if (outputs == inputs) return;
  refuse(pending, "a list of ", outputs, " outputs is given for ", inputs,
         " inputs; give as many outputs as inputs");
}

void require_kind_of(const PendingCollective& pending, const at::Tensor& like,
                     const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    try {  // torch does not check a list of lists
      torch_detail::require_memory(tensor, pending.name);
    } catch (const Error& error) {
      pending.refuse(error);
    }
    if (tensor.scalar_type() != like.scalar_type()) {
      refuse(pending, "is of dtypes ", like.scalar_type(), " and ", tensor.scalar_type(),
             "; give inputs and outputs of one dtype");
    }
    if (tensor.device() != like.device()) {
      refuse(pending, "is on ", like.device(), " and ", tensor.device(),
             "; give inputs and outputs on one device");
    }
  }
}

void require_own_part(const PendingCollective& pending, const at::Tensor& part,
                      const at::Tensor& output) {
  if (part.numel() == output.numel()) return;
  refuse(pending, "the output has ", output.numel(), " elements, but its part has ", part.numel());
}

void require_equal_parts(const PendingCollective& pending, const at::Tensor& whole,
                         const at::Tensor& part, size_t members) {
  if (whole.numel() == part.numel() * static_cast<int64_t>(members)) return;
  refuse(pending, "has ", whole.numel(), " elements for the ", members, " ranks of the group, and ",
         part.numel(), " elements for one of them; give ",
         part.numel() * static_cast<int64_t>(members), ", or a list of tensors that may differ");
}

std::vector<int64_t> rows_of_members(const PendingCollective& pending, const at::Tensor& tensor,
                                     const std::vector<int64_t>& splits, size_t members,
                                     std::string_view called) {
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  const auto count = static_cast<int64_t>(members);
  if (splits.empty()) {
    if (rows % count == 0) return std::vector<int64_t>(members, rows / count);
    refuse(pending, "its first dimension, ", rows, ", is not divisible by the ", members,
           " ranks of the group; give ", called);
  }
  const bool fits = splits.size() == members &&
                    std::all_of(splits.begin(), splits.end(),
                                [&](int64_t split) { return split >= 0 && split <= rows; }) &&
                    std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows;
  if (fits) return splits;
  refuse(pending, called, " is ", core::shape_text(splits), ", for ", members,
         " ranks of the group and a first dimension of ", rows,
         "; give one for each rank, adding up to that");
}

std::vector<size_t> runs_of_dtype(const Tensors& tensors) {
  std::vector<size_t> ends;
  for (size_t i = 1; i <= tensors.size(); ++i) {
    if (i == tensors.size() || tensors[i].dtype() != tensors[i - 1].dtype()) ends.push_back(i);
  }
  return ends;
}

}  // namespace horon::python::process_group
