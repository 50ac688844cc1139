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

// `scratch` is the chunk's own; it begins at a cache line.
class BatchChunks {
 public:
  virtual ~BatchChunks() = default;

  int64_t count() const { return plan_.chunks; }
  // For how many chunks at a time there is scratch.
  virtual int64_t at_once() const { return plan_.at_once(); }
  // Bytes of scratch for one chunk; whole cache lines.
  virtual size_t bytes() const = 0;

  virtual Batch batch(int64_t chunk, std::byte* scratch) const = 0;
  virtual std::vector<CopyItem> in(int64_t chunk, std::byte* scratch) const = 0;
  virtual std::vector<CopyItem> out(int64_t chunk, const std::byte* scratch) const = 0;

 protected:
  explicit BatchChunks(const ChunkPlan& plan) : plan_(plan) {}
  const ChunkPlan plan_;
};

// For a collective whose result is laid out as its input. `batch` is the whole batch. It outlives
// the chunks, and so does what `copies` refers to.
std::unique_ptr<BatchChunks> make_flat_chunks(const ChunkPlan& plan, const Batch& batch,
                                              const BatchCopies& copies);
// For an allgather or a reducescatter: each chunk has a stretch of every member's block. The
// arguments outlive the chunks.
std::unique_ptr<BatchChunks> make_chunks_of_blocks(const ChunkPlan& plan, const Batch& batch,
                                                   const EntryWork& entry,
                                                   const BlockLayout& blocks);

}  // namespace horon::core
