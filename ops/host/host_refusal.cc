#include "horon/ops/host/host_refusal.h"

#include "horon/core/base/text.h"

namespace horon::ops {

std::string host_refusal(const core::BatchFacts& facts, CollectiveKind kind) {
  if (facts.kind != kind) return core::concat("it does ", to_string(kind), " only");
  if (facts.kind == CollectiveKind::Barrier) return "";
  if (facts.device != DeviceKind::Host) {
    return core::concat("it can't reach ", to_string(facts.device), " memory");
  }
  if (core::reduces(facts.kind) && facts.dtype == DataType::Bool &&
      facts.reduce_op == ReduceOp::Average) {
    return "bool has no average";
  }
  return "";
}

}  // namespace horon::ops
