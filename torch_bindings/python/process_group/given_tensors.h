// The tensors and lists that a call of c10d gives, and what is wrong with them. What refuses does
// so as the collective itself does: the other ranks are told, and do not wait for this one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

// c10d gives lists, from the time when a process had several GPUs.
template <class Value>
Value& only(std::vector<Value>& list, std::string_view call) {
  if (list.size() == 1) return list.front();
  throw Error(ErrorCode::InvalidArgument,
              core::concat(call, ": give one tensor, not a list of ", list.size()));
}

// A list for the ranks of the group has one tensor for each.
void require_outputs(const torch_detail::PendingCollective& pending, size_t outputs,
                     size_t members);
// As many lists as ranks of the group, of as many tensors as there are inputs.
void require_lists(const torch_detail::PendingCollective& pending,
                   const std::vector<Tensors>& lists, size_t members, size_t inputs);
// A call of several tensors has as many results.
void require_results(const torch_detail::PendingCollective& pending, size_t outputs, size_t inputs);
// Nothing is converted on its way, or moved to another device, neither when tensors are joined nor
// when a result is written.
void require_kind_of(const torch_detail::PendingCollective& pending, const at::Tensor& like,
                     const Tensors& tensors);
// The part of this rank is as large as its result.
void require_own_part(const torch_detail::PendingCollective& pending, const at::Tensor& part,
                      const at::Tensor& output);
// One tensor that stands for those of all ranks has an equal part for each.
void require_equal_parts(const torch_detail::PendingCollective& pending, const at::Tensor& whole,
                         const at::Tensor& part, size_t members);

// How many rows of the tensor go to each rank of the group, or come from it: as `splits` says,
// which the caller knows as `called`; empty: equal parts.
std::vector<int64_t> rows_of_members(const torch_detail::PendingCollective& pending,
                                     const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                     size_t members, std::string_view called);

// The ends of runs of tensors of one dtype: a group has one.
std::vector<size_t> runs_of_dtype(const Tensors& tensors);

}  // namespace horon::python::process_group
