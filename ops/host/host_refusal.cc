#include "horon/ops/host/host_refusal.h"

#include "horon/core/base/text.h"

namespace horon::ops {

std::string host_refusal(const core::BatchFacts& facts, CollectiveKind kind) {
  if (facts.kind != kind) return core::concat("it does ", to_string(kind), " only");
  if (facts.kind == CollectiveKind::Barrier) return "";
  if (facts.device != DeviceKind::Host) {
    return core::concat("it can't reach ", to_string(facts.device), " memory");
  }
  if (!core::reduces(facts.kind)) return "";
  if (facts.reduce_op == ReduceOp::Adasum) return "it reduces element by element";
  return std::string(why_no_reduction(facts.dtype, facts.reduce_op));
}

}  // namespace horon::ops
