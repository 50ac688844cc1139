#include "horon/core/runtime/runnable_calls.h"

#include "horon/core/execution/prepared_batches.h"

namespace horon::core {
namespace {

size_t index_of(const BatchFacts& facts) {
  auto index = static_cast<size_t>(facts.device);
  index = index * kCollectiveKindCount + static_cast<size_t>(facts.kind);
  index = index * kDataTypeCount + static_cast<size_t>(facts.dtype);
  return index * kReduceOpCount + static_cast<size_t>(facts.reduce_op);
}

}  // namespace

std::string RunnableCalls::fault(const BatchFacts& facts) const {
  std::atomic<bool>& known = known_to_run_.at(index_of(facts));
  if (!facts.captured && known.load(std::memory_order_relaxed)) return "";
  std::string fault;
  const bool have_ops = ask([&](const OpTable& ops) {
    if (!ops.can_run(facts)) {
      fault = ops.why_none(facts);
    } else if (facts.captured) {
      fault = ops.select(facts).refusal_of_capture_now();
    }
  });
  if (have_ops && fault.empty() && !facts.captured) known.store(true, std::memory_order_relaxed);
  return fault;
}

PieceSizes RunnableCalls::piece_sizes(const Batch& like) const {
  PieceSizes sizes;
  (void)ask([&](const OpTable& ops) { sizes = op_for(ops, like, like.count).piece_sizes(like); });
  return sizes;
}

}  // namespace horon::core
