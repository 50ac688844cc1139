// The chunks of a batch that goes by way of scratch (chunked_batch.h): what each of them is for the
// op, and what is copied for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/execution/batch_copies.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/execution/chunk_plan.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/memory_queue.h"

namespace horon::core {

// `scratch`: of the chunk, at the beginning of a cache line.
class BatchChunks {
 public:
  virtual ~BatchChunks() = default;

  int64_t count() const { return plan_.chunks; }
  // How many there is scratch for.
  virtual int64_t at_once() const { return plan_.at_once(); }
  // Scratch of each, whole cache lines.
  virtual size_t bytes() const = 0;

  virtual Batch batch(int64_t chunk, std::byte* scratch) const = 0;
  virtual std::vector<CopyItem> in(int64_t chunk, std::byte* scratch) const = 0;
  virtual std::vector<CopyItem> out(int64_t chunk, const std::byte* scratch) const = 0;

 protected:
  explicit BatchChunks(const ChunkPlan& plan) : plan_(plan) {}
  const ChunkPlan plan_;
};

// Of a collective whose result lies as its input does. `batch`: all of it; it outlives the chunks,
// as what `copies` refers to does.
std::unique_ptr<BatchChunks> make_flat_chunks(const ChunkPlan& plan, const Batch& batch,
                                              const BatchCopies& copies);
// Of an allgather or a reducescatter: a chunk has a stretch of each member's block. All outlive the
// chunks.
std::unique_ptr<BatchChunks> make_chunks_of_blocks(const ChunkPlan& plan, const Batch& batch,
                                                   const EntryWork& entry,
                                                   const BlockLayout& blocks);

}  // namespace horon::core
