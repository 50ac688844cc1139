// One chunk of a reducescatter, driven by one rank of each host: the sums of all hosts go to the
// host of the member that gets the chunk, and are added there.
#pragma once

#include <span>
#include <vector>

#include "horon/core/base/round_up.h"
#include "horon/ops/hierarchical/block_chunks.h"
#include "horon/ops/hierarchical/chunks.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/host_sums.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

// What the chunks of one reducescatter have in common; it outlives them.
struct CollectContext {
  Messages& messages;
  const HostsLayout& layout;
  const BlockChunks& chunks;
  const HostSums& sums;
  WireType wire_type;
  int first_tag;  // of kChunksOfLaneWithTags

  // Bytes of the longest chunk's sum as it travels, in whole cache lines.
  size_t sum_bytes() const {
    return core::whole_cache_lines(static_cast<size_t>(wire_type.bytes(chunks.chunk_elements())));
  }
  // Two peers exchange the chunks of one lane, so tags count within it.
  int tag(int64_t chunk) const {
    return first_tag + static_cast<int>(chunk / layout.lanes % kChunksOfLaneWithTags);
  }
};

class ChunkCollect final : public ChunkWork {
 public:
  // `memory`: memory_bytes(), 64-byte aligned.
  ChunkCollect(const CollectContext& context, std::byte* memory);
  static size_t memory_bytes(const CollectContext& context);

  int64_t begin(int64_t index, std::span<const std::byte* const> inputs,
                std::span<std::byte* const> outputs) override;
  int64_t advance() override;
  bool is_waited_for() const override { return false; }  // begin() has sent all that is sent
  bool over() const override { return over_; }
  int64_t index() const override { return index_; }

 private:
  bool is_mine() const { return chunk_.host == context_.layout.host; }

  const CollectContext& context_;
  std::byte* const memory_;  // for the sum of each host
  bool over_ = true;
  int64_t index_ = 0;
  BlockChunks::Chunk chunk_;
  std::byte* output_ = nullptr;         // of the member
  std::vector<const std::byte*> sums_;  // [host]
  std::vector<Messages::Id> under_way_;
};

}  // namespace horon::ops
