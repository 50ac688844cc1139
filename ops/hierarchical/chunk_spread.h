// One chunk of a broadcast or an allgather, driven by one rank of each host: it goes from the
// memory of its member to the ranks of that host, and from host to host along a tree.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "horon/ops/hierarchical/block_chunks.h"
#include "horon/ops/hierarchical/chunks.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

// What the chunks of one batch have in common; it outlives them.
struct SpreadContext {
  Messages& messages;
  const HostsLayout& layout;
  const BlockChunks& chunks;
  int64_t element_bytes;
  int fan_out;
  int first_tag;  // of kChunksOfLaneWithTags
};

class ChunkSpread final : public ChunkWork {
 public:
  explicit ChunkSpread(const SpreadContext& context) : context_(context) {}

  int64_t begin(int64_t index, std::span<const std::byte* const> inputs,
                std::span<std::byte* const> outputs) override;
  int64_t advance() override;
  bool is_waited_for() const override { return arrival_ && passes_on_; }
  bool over() const override { return !arrival_ && departures_.empty(); }
  int64_t index() const override { return index_; }

 private:
  int tag() const;
  int64_t pass_on();

  const SpreadContext& context_;
  int64_t index_ = 0;
  BlockChunks::Chunk chunk_;
  int64_t bytes_ = 0;
  const std::byte* data_ = nullptr;  // of the chunk: in an input, or in this rank's output
  std::vector<std::byte*> outputs_;  // [local rank]
  std::optional<Messages::Id> arrival_;
  bool passes_on_ = false;  // what arrives goes on to other hosts
  std::vector<Messages::Id> departures_;
};

}  // namespace horon::ops
