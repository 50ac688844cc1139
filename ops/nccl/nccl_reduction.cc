#include "horon/ops/nccl/nccl_reduction.h"

#include <string_view>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

double exact_part_of(int64_t divisor) {
  double part = 1.0;
  while (part * static_cast<double>(divisor) > 1.0) part /= 2;
  return part;
}

std::string refusal_of_reduction(DataType dtype, ReduceOp op) {
  const std::string_view undefined = why_no_reduction(dtype, op);
  if (!undefined.empty()) return std::string(undefined);
  if (dtype == DataType::Int16) return "NCCL has no int16";
  if (is_bitwise(op) || op == ReduceOp::Adasum) {
    return core::concat("NCCL has no ", to_string(op));
  }
  if (op != ReduceOp::Average || is_floating(dtype) || dtype == DataType::Int64) return "";
  return core::concat("NCCL sums ", to_string(dtype), " in that type, which may wrap around");
}

}  // namespace

NcclReduction nccl_reduction(const core::Batch& batch) {
  NcclReduction reduction{batch.dtype, batch.reduce_op, 1.0};
  if (batch.dtype == DataType::Bool) {  // the maximum is "or", the minimum is "and"
    const bool is_or = batch.reduce_op == ReduceOp::Sum || batch.reduce_op == ReduceOp::Max;
    return {DataType::UInt8, is_or ? ReduceOp::Max : ReduceOp::Min, 1.0};
  }
  if (batch.reduce_op == ReduceOp::Average) reduction.op = ReduceOp::Sum;
  if (batch.dtype == DataType::Float16 && reduction.op == ReduceOp::Sum) {
    reduction.part = exact_part_of(batch.divisor);
  }
  return reduction;
}

std::string nccl_refusal(const core::BatchFacts& facts, CollectiveKind kind) {
  if (facts.kind != kind) return core::concat("it does ", to_string(kind), " only");
  if (facts.device != DeviceKind::Cuda) {
    return core::concat("it can't reach ", to_string(facts.device), " memory");
  }
  return core::reduces(kind) ? refusal_of_reduction(facts.dtype, facts.reduce_op) : "";
}

MoveLaunch one_move(MoveLaunch launch, const std::byte* from, std::byte* to, int64_t count) {
  const bool added = launch.add(from, to, count);
  HORON_CHECK(added, "an empty launch takes any memory that a device can have");
  return launch;
}

}  // namespace horon::ops
