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
  if (facts.captured) return fault_of_captured(facts);
  std::atomic<bool>& known = known_to_run_.at(index_of(facts));
  if (known.load(std::memory_order_relaxed)) return "";
  const std::shared_ptr<const OpTable> ops = ops_.lock();
  if (ops == nullptr) return "";
  if (!ops->can_run(facts)) return ops->why_none(facts);
  known.store(true, std::memory_order_relaxed);
  return "";
}

std::string RunnableCalls::fault_of_captured(const BatchFacts& facts) const {
  const std::shared_ptr<const OpTable> ops = ops_.lock();
  if (ops == nullptr) return "";
  if (!ops->can_run(facts)) return ops->why_none(facts);
  return ops->select(facts).refusal_of_capture_now();
}

PieceSizes RunnableCalls::piece_sizes(const Batch& like) const {
  const std::shared_ptr<const OpTable> ops = ops_.lock();
  return ops == nullptr ? PieceSizes() : op_for(*ops, like, like.count).piece_sizes(like);
}

}  // namespace horon::core
