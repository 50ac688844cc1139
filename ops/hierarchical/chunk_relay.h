// One chunk of a reducescatter, driven by one rank of each host: a sum goes from host to host in a
// ring. Each host adds its own, and the sum ends at the host of the member that gets the chunk.
// (The first half of a ring allreduce: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations".)
//
// If all sums go to that host directly (chunk_collect.h), it receives one from each other host.
// That is as fast if all hosts get equally much, and takes fewer steps; but if a few hosts get most
// of the result, their cables carry nearly all bytes. In the ring no cable carries a byte of the
// result twice, whoever gets it.
#pragma once

#include <optional>
#include <span>

#include "horon/ops/hierarchical/block_chunks.h"
#include "horon/ops/hierarchical/chunk_collect.h"
#include "horon/ops/hierarchical/chunks.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

class ChunkRelay final : public ChunkWork {
 public:
  // The sums of `context` are made in the type in which they travel. `memory`: memory_bytes(),
  // 64-byte aligned.
  ChunkRelay(const CollectContext& context, std::byte* memory);
  static size_t memory_bytes(const CollectContext& context);

  int64_t begin(int64_t index, std::span<const std::byte* const> inputs,
                std::span<std::byte* const> outputs) override;
  int64_t advance() override;
  bool is_waited_for() const override { return incoming_.has_value() && !is_last(); }
  bool over() const override { return over_; }
  int64_t index() const override { return index_; }

 private:
  // This host's place in the ring; 0: it begins.
  int step() const;
  bool is_last() const { return chunk_.host == context_.layout.host; }
  int64_t bytes() const { return context_.wire_type.bytes(chunk_.count); }
  void pass_on(const std::byte* sum);
  int64_t add();

  const CollectContext& context_;
  std::byte* const received_;  // the sum of the hosts before this one
  std::byte* const sum_;       // of this host, unless that is its one rank's input
  bool over_ = true;
  int64_t index_ = 0;
  BlockChunks::Chunk chunk_;
  std::byte* output_ = nullptr;  // of the member
  const std::byte* own_ = nullptr;
  std::optional<Messages::Id> incoming_, outgoing_;
};

}  // namespace horon::ops
