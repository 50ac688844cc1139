// Tensors of a call as rows of one element each: that is how collectives that divide or join
// tensors carry them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

// All elements in row-major order, detached; a view if they lie so in memory.
at::Tensor flat(const at::Tensor& tensor);
// The elements of all, one tensor after the other.
at::Tensor flat(const Tensors& tensors);
// The memory of an output for a result of rows, written without a copy; undefined if its elements
// do not lie there in row-major order.
at::Tensor flat_output(const at::Tensor& output);
// The same, but undefined too if the output lies in the memory of the input: then the whole input
// would be copied first, and that of a reducescatter is longer than its result.
at::Tensor flat_output_beside(const at::Tensor& input, const at::Tensor& output);
// Whether what comes from each rank may be written straight into one of `outputs`, while the others
// read `input`: they are plain memory of the host and do not overlap, except that the output number
// `in_place` may be the input itself.
bool may_be_written_apart(const at::Tensor& input, const Tensors& outputs,
                          std::optional<size_t> in_place = {});
std::vector<int64_t> element_counts(const Tensors& tensors);

// Writes the rows to the output, or to the outputs one after the other. Throws Error(Mismatch)
// naming the collective if their numbers differ, and has written nothing then.
void copy_flat(const at::Tensor& rows, const at::Tensor& output, const std::string& name);
// `rows_from`: how many rows came from each member of the group.
void copy_flat(const at::Tensor& rows, const std::vector<int64_t>& rows_from,
               const Tensors& outputs, const std::string& name);

}  // namespace horon::python::process_group
