// Between LibTorch's tensors and the memory and specs of the runtime.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"
#include "horon/core/runtime/submission.h"

namespace horon::torch_detail {

// Throws Error(InvalidArgument) that begins with the name if a collective can't use the tensor: it
// is undefined, sparse, nested, without memory of its own, of a dtype that Horon does not support,
// or on a device that this rank does not work on.
void check_tensor(const at::Tensor& tensor, std::string_view name);

// Throws the same if nothing can be read from the tensor or written to it: it is of a class of
// Python's that stands for other tensors, a DTensor say, or nested. Call it before anything else:
// every operation on such a tensor, even asking for its shape, may throw an exception of Python's
// or LibTorch's, of which the other ranks would not be told.
void require_memory(const at::Tensor& tensor, std::string_view name);

// As check_tensor(), for tensors that are written: refuses those whose elements overlap in memory
// (an expanded tensor).
void check_writable(const at::Tensor& tensor, std::string_view name);

// Throws Error(InvalidArgument) if there is no such type.
DataType data_type_of(at::ScalarType type, std::string_view name);
DataType data_type_of(const at::Tensor& tensor, std::string_view name);
at::ScalarType scalar_type_of(DataType dtype);

// The tensor itself if it is row-major in memory, else a row-major copy. Ranks may hold the same
// parameter in different layouts (channels_last on one, contiguous on another), so elements travel
// in row-major order.
at::Tensor row_major(const at::Tensor& tensor);
// The tensor's dtype if its elements travel as another dtype, else nullopt: complex numbers as real
// ones; integers without a sign and floats of 8 bits, which are moved but not reduced, as integers
// of the same length.
std::optional<at::ScalarType> type_in_disguise(const at::Tensor& tensor);
inline bool is_moved_only(const at::Tensor& tensor) {
  return !tensor.is_complex() && type_in_disguise(tensor);
}
// The tensor as it travels, detached: a view, but a copy of a lazy conjugate. A complex number is
// two real ones in one more dimension, and types that are only moved are integers of the same bits.
// An undefined or sparse tensor is given back as it is.
at::Tensor real_view(const at::Tensor& tensor);
// As real_view(), but of what lies in memory, so never a copy: a lazy conjugate is not conjugated.
// For those who look at anything but the signs of imaginary parts.
at::Tensor real_memory(const at::Tensor& tensor);
// The other way round: `type` is that of the tensor of which real_view() gave `real`. It is no view
// for autograd: a program may change results in place.
at::Tensor undisguised(const at::Tensor& real, std::optional<at::ScalarType> type);
// "float32 [3, 2]", "float32 (complex) [3]", "int16 (UInt16) [2]". Throws Error(InvalidArgument)
// for other dtypes.
std::string type_and_shape(const at::Tensor& tensor, std::string_view name);
// A new row-major tensor of the same shape, dtype and device.
at::Tensor row_major_like(const at::Tensor& tensor);

// Whether the tensor's values lie in memory one after the other, in row-major order (no lazy
// negation or conjugation).
bool is_row_major(const at::Tensor& tensor);
// Whether a collective can work on the tensor's memory without a copy or a view. Most tensors are
// like that, and views of tensors cost more than the rest of a small call.
bool travels_as_it_is(const at::Tensor& tensor);
// Autograd does not see what the runtime writes, and must refuse a graph that has saved this
// tensor.
void mark_written(const at::Tensor& tensor);

// Where the tensors of an archive go: to where they were (empty), or to the CPU, if LibTorch has no
// GPU here.
std::optional<c10::Device> device_of_archives();

// Memory of row-major tensors; `output` may be the same tensor, or undefined where the runtime
// allocates it.
core::MemoryPart make_part(const at::Tensor& input, const at::Tensor& output);

}  // namespace horon::torch_detail
