// What is wrong with the tensors of a call, and which calls are alike.
#include <cmath>

#include <c10/util/accumulate.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/narrow_type.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/pending_collective.h"
#include "horon/torch_bindings/tensors/finite.h"
#include "horon/torch_bindings/tensors/stream_order.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {

using core::concat;

void PendingCollective::check(const at::Tensor& tensor, Into into) {
  try {
    require_memory(tensor, name);
    const bool disguised = tensor.defined() && type_in_disguise(tensor);
    const at::Tensor view = disguised ? real_memory(tensor) : at::Tensor();
    const at::Tensor& real = disguised ? view : tensor;
    writes(into) ? check_writable(real, name) : check_tensor(real, name);
    const DataType given = data_type_of(real, name);
    const DataType dtype = type_that_travels(given);
    if (!parts_.empty() && dtype != spec.dtype) {
      throw Error(ErrorCode::InvalidArgument,
                  concat("tensor \"", name, "\": tensor ", parts_.size(), " of the group is ",
                         to_string(dtype), ", but the first is ", to_string(spec.dtype),
                         "; give all tensors of a group one dtype"));
    }
    spec.dtype = dtype;
    check_device(tensor);
    check_reduction(tensor, given);
  } catch (...) {  // LibTorch's own errors too: the check for finite values needs memory
    refuse(core::current_error());
  }
}

DataType PendingCollective::type_that_travels(DataType dtype) const {
  if (!narrows_rows()) return dtype;
  if (dtype != DataType::Float32 || !core::is_16_bit(row_compression)) {
    throw Error(ErrorCode::InvalidArgument,
                concat("tensor \"", name, "\": ", to_string(spec.kind), " can compress only ",
                       "float32, to Float16 or BFloat16; not ", to_string(dtype), " to ",
                       to_string(row_compression)));
  }
  return core::narrow_type(row_compression);
}

void PendingCollective::check_device(const at::Tensor& tensor) {
  const c10::Device device = tensor.device();
  if (!parts_.empty() && device != device_) {
    throw Error(
        ErrorCode::InvalidArgument,
        concat("tensor \"", name, "\": tensor ", parts_.size(), " of the group is on ", device,
               ", but the first is on ", device_, "; put all tensors of a group on one device"));
  }
  device_ = device;
  spec.device = device_in_spec(device, process_set_.id());
}

void PendingCollective::check_reduction(const at::Tensor& tensor, DataType dtype) const {
  if (!core::reduces(spec.kind)) return;
  const auto fail = [&](std::string_view why) {
    throw Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": ", why));
  };
  if (is_moved_only(tensor)) {
    fail(concat("is ", tensor.scalar_type(),
                ", which can be moved but not reduced; convert it to a reducible dtype"));
  }
  if (const auto why = why_no_reduction(dtype, spec.reduce_op); !why.empty()) {
    fail(concat("is ", to_string(dtype), ": ", why));
  }
  const bool linear = spec.reduce_op == ReduceOp::Sum || spec.reduce_op == ReduceOp::Average;
  if (tensor.is_complex() && !linear) {
    fail(concat("is complex, and complex dtypes have no ", to_string(spec.reduce_op),
                "; use Sum or Average"));
  }
  if (!std::isfinite(spec.prescale) || !std::isfinite(spec.postscale)) {
    fail("prescale and postscale must be finite");
  }
  if (!is_floating(dtype) && (spec.prescale != 1.0 || spec.postscale != 1.0)) {
    fail(concat("is ", to_string(dtype), "; prescale and postscale need a floating type"));
  }
  if (ops::runtime().config().check_finite && is_floating(dtype) &&
      !all_finite(real_memory(tensor))) {
    throw not_finite(concat("tensor \"", name, "\""), real_memory(tensor),
                     "HORON_CHECK_FINITE allows only finite values");
  }
}

std::string PendingCollective::fault_of_given(const Part& part) {
  const int64_t row = part.rows_are_empty ? 1 : c10::multiply_integers(part.row_shape);
  const int64_t rows = part.elements / row;
  if (part.given.size(0) == rows) return "";
  const std::string_view unit = part.row_shape.empty() ? " elements" : " rows";
  return concat("the output has ", part.given.size(0), unit, ", but the result has ", rows,
                "; give one of that size");
}

// The number of its rows can't be checked yet: see fault_of_given().
void PendingCollective::check_output(const Part& part, const at::Tensor& rows,
                                     const at::Tensor& output) const {
  const auto fail = [&](const auto&... why) {
    refuse(Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": the output ", why...)));
  };
  const bool complex = part.disguised && c10::isComplexType(*part.disguised);
  if (output.is_complex() != complex) {
    fail(output.is_complex() ? "is complex, but the tensor is not"
                             : "is not complex, but the tensor is");
  }
  if (!complex && type_in_disguise(output) != part.disguised) {
    fail("is ", output.scalar_type(), ", but the tensor is ",
         part.disguised.value_or(rows.scalar_type()));
  }
  const at::Tensor real = part.disguised ? real_memory(output) : output;
  try {
    check_writable(real, name);
  } catch (const Error& error) {
    refuse(error);
  }
  if (real.scalar_type() != rows.scalar_type()) {
    fail("is ", real.scalar_type(), ", but the tensor is ", rows.scalar_type());
  }
  if (output.device() != rows.device()) fail("is on ", output.device(), ", not on ", rows.device());
  if (!is_row_major(output)) {
    fail("is not row-major; give contiguous memory");
  }
  const at::IntArrayRef shape = real.sizes();
  if (shape.empty() || shape.slice(1) != at::IntArrayRef(part.row_shape)) {
    fail("has the shape ", core::shape_text(shape), "; its rows must have the shape ",
         core::shape_text(part.row_shape));
  }
}

uint64_t PendingCollective::likeness() const {
  c10::SmallVector<int64_t, 32> numbers = {static_cast<int64_t>(spec.kind),
                                           static_cast<int64_t>(spec.dtype),
                                           static_cast<int64_t>(spec.reduce_op),
                                           spec.root,
                                           static_cast<int64_t>(spec.compression),
                                           static_cast<int64_t>(spec.device),
                                           grouped_ ? 1 : 0};
  for (const Part& part : parts_) {
    at::IntArrayRef agreed = part.shape;
    if (core::has_own_rows(spec.kind) && !agreed.empty()) agreed = agreed.slice(1);
    numbers.push_back(static_cast<int64_t>(agreed.size()));
    numbers.append(agreed.begin(), agreed.end());
  }
  return core::hash_of(
      {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t)});
}

}  // namespace horon::torch_detail
