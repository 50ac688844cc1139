#include "horon/ops/host/block_plan.h"

#include <span>

#include "horon/core/base/error.h"

namespace horon::ops {
namespace {

// Blocks one behind the other; returns the bytes of all.
int64_t lay_out(std::span<const int64_t> counts, int64_t element, std::vector<Block>& blocks) {
  HORON_CHECK(counts.size() == blocks.size(), "one count for each rank");
  int64_t bytes = 0;
  for (size_t member = 0; member < counts.size(); ++member) {
    blocks[member] = {bytes, counts[member] * element};
    bytes += blocks[member].bytes;
  }
  return bytes;
}

}  // namespace

BlockPlan make_block_plan(const core::Batch& batch, int rank, int ranks) {
  const auto element = static_cast<int64_t>(size_of(batch.dtype));
  const Block all = {0, batch.count * element};
  BlockPlan plan;
  plan.send.resize(static_cast<size_t>(ranks));
  plan.receive.resize(static_cast<size_t>(ranks));
  switch (batch.kind) {
    case CollectiveKind::Broadcast:
      plan.one_for_all = true;
      plan.output_bytes = all.bytes;
      plan.receive[static_cast<size_t>(batch.root)] = all;
      if (rank != batch.root) break;
      plan.input_bytes = all.bytes;
      plan.send.assign(plan.send.size(), all);
      break;
    case CollectiveKind::Allgather:
      plan.one_for_all = true;
      plan.input_bytes = all.bytes;
      plan.send.assign(plan.send.size(), all);
      plan.output_bytes = lay_out(batch.receive_counts, element, plan.receive);
      break;
    case CollectiveKind::Reducescatter:
      plan.reduces = true;
      plan.input_bytes = lay_out(batch.send_counts, element, plan.send);
      plan.output_bytes = all.bytes;
      plan.receive.assign(plan.receive.size(), all);
      break;
    default:
      plan.input_bytes = lay_out(batch.send_counts, element, plan.send);
      plan.output_bytes = lay_out(batch.receive_counts, element, plan.receive);
      break;
  }
  const auto me = static_cast<size_t>(rank);
  HORON_CHECK(plan.send[me].bytes == plan.receive[me].bytes,
              "what a rank sends itself is what it gets");
  return plan;
}

}  // namespace horon::ops
