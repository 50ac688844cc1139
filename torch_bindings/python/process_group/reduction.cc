#include "horon/torch_bindings/python/process_group/reduction.h"

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::python::process_group {

ReduceOp reduce_op_of(const ::c10d::ReduceOp& op) {
  switch (op.op_) {
    case ::c10d::ReduceOp::SUM:
    case ::c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::Sum;
    case ::c10d::ReduceOp::AVG:
      return ReduceOp::Average;
    case ::c10d::ReduceOp::PRODUCT:
      return ReduceOp::Product;
    case ::c10d::ReduceOp::MIN:
      return ReduceOp::Min;
    case ::c10d::ReduceOp::MAX:
      return ReduceOp::Max;
    case ::c10d::ReduceOp::BAND:
      return ReduceOp::BitAnd;
    case ::c10d::ReduceOp::BOR:
      return ReduceOp::BitOr;
    case ::c10d::ReduceOp::BXOR:
      return ReduceOp::BitXor;
    default:
      throw Error(ErrorCode::InvalidArgument,
                  "the backend \"horon\" doesn't support this ReduceOp");
  }
}

void set_reduction(torch_detail::PendingCollective& pending, const ::c10d::ReduceOp& op) {
  try {
    pending.spec.reduce_op = reduce_op_of(op);
  } catch (const Error& error) {
    pending.refuse(
        Error(error.code(), core::concat("tensor \"", pending.name, "\": ", error.what())));
  }
  if (op.op_ != ::c10d::ReduceOp::PREMUL_SUM) return;
  const auto* factor = dynamic_cast<const ::c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) return;
  pending.spec.prescale = factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                          : factor->double_factor;
}

}  // namespace horon::python::process_group
