#include "horon/torch_bindings/python/process_group/sparse_rows.h"

#include <c10/util/accumulate.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/sparse_reduction.h"
#include "horon/torch_bindings/python/process_group/reduction.h"

namespace horon::python::process_group {
namespace {

using core::concat;
using torch_detail::PendingCollective;

// One row of bytes for each row. A copy, since contiguous() does not change the strides of
// dimensions of one element, and view() requires 1 for the last.
at::Tensor as_bytes(const at::Tensor& rows) {
  const int64_t row = c10::multiply_integers(rows.sizes().slice(1));
  return rows.resolve_conj()
      .resolve_neg()
      .reshape({rows.size(0), row})
      .clone(at::MemoryFormat::Contiguous)
      .view(at::kByte);
}

// The inverse. view() refuses rows without bytes, which are empty in any type.
at::Tensor of_bytes(const at::Tensor& bytes, at::ScalarType dtype) {
  if (bytes.size(1) == 0) return bytes.to(dtype);
  return bytes.view(dtype);
}

ReduceOp checked_op(const PendingCollective& pending, const at::Tensor& tensor,
                    const ::c10d::ReduceOp& op) {
  try {
    if (op.op_ == ::c10d::ReduceOp::PREMUL_SUM) {
      throw Error(ErrorCode::InvalidArgument,
                  concat("tensor \"", pending.name,
                         "\": is sparse, and sparse tensors have no PREMUL_SUM; ",
                         "multiply it, then use SUM"));
    }
    const ReduceOp reduce_op = reduce_op_of(op);
    torch_detail::check_sparse_allreduce(tensor, pending.name, reduce_op);
    return reduce_op;
  } catch (const Error& error) {
    pending.refuse(error);
  }
}

}  // namespace

void add_sparse(PendingCollective& pending, const at::Tensor& tensor, const ::c10d::ReduceOp& op) {
  const ReduceOp reduce_op = checked_op(pending, tensor, op);
  const at::Tensor mine = tensor.detach().coalesce();
  pending.remark = concat(to_string(reduce_op), " of sparse ", mine.scalar_type(), " ",
                          core::shape_text(mine.sizes()));
  pending.reserve(2);
  pending.add_rows(as_bytes(torch_detail::index_rows(mine)));
  pending.add_rows(as_bytes(mine.values()));
}

at::Tensor sparse_sum(PendingCollective& pending, const at::Tensor& like,
                      const ::c10d::ReduceOp& op) {
  const std::vector<at::Tensor>& rows = pending.results();
  const at::Tensor& values = rows.at(1);
  std::vector<int64_t> shape{values.size(0)};
  const at::IntArrayRef of_row = like.sizes().slice(static_cast<size_t>(like.sparse_dim()));
  shape.insert(shape.end(), of_row.begin(), of_row.end());
  return torch_detail::sum_of_rows(of_bytes(rows.at(0), at::kLong), pending.received_rows().at(0),
                                   of_bytes(values, like.scalar_type()).reshape(shape),
                                   like.sizes(), reduce_op_of(op));
}

}  // namespace horon::python::process_group
