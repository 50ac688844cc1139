#include "horon/core/execution/batch_chunks.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/dtype.h"
#include "horon/core/base/round_up.h"

namespace horon::core {
namespace {

size_t bytes_of(int64_t elements, DataType dtype) {
  return static_cast<size_t>(elements) * size_of(dtype);
}

// The batch's piece_bytes gave the length of the chunks; within a chunk the op chooses.
Batch chunk_of(const Batch& batch) {
  Batch chunk = batch;
  chunk.piece_bytes = 0;
  return chunk;
}

class FlatChunks final : public BatchChunks {
 public:
  FlatChunks(const ChunkPlan& plan, const Batch& batch, const BatchCopies& copies)
      : BatchChunks(plan), batch_(batch), copies_(copies) {}

  size_t bytes() const override {
    return whole_cache_lines(bytes_of(plan_.elements, batch_.dtype));
  }
  Batch batch(int64_t chunk, std::byte* scratch) const override {
    Batch part = chunk_of(batch_);
    part.input = part.output = scratch;
    part.count = stretch(chunk).count;
    return part;
  }
  std::vector<CopyItem> in(int64_t chunk, std::byte* scratch) const override {
    return copies_.in(scratch, stretch(chunk));
  }
  std::vector<CopyItem> out(int64_t chunk, const std::byte* scratch) const override {
    return copies_.out(scratch, stretch(chunk));
  }

 private:
  BatchStretch stretch(int64_t chunk) const { return plan_.stretch(chunk, batch_.count); }

  const Batch& batch_;
  const BatchCopies copies_;
};

// A chunk's stretches of the blocks are packed as the blocks of the whole batch would be, first
// those of the input and then those of the output.
class ChunksOfBlocks final : public BatchChunks {
 public:
  ChunksOfBlocks(const ChunkPlan& plan, const Batch& batch, const EntryWork& entry,
                 const BlockLayout& blocks)
      : BatchChunks(plan), batch_(batch), entry_(entry), blocks_(blocks) {
    // No chunk has more than the first.
    output_at_ = whole_cache_lines(packed_bytes(blocks_.in_counts));
    bytes_ = output_at_ + whole_cache_lines(packed_bytes(blocks_.out_counts));
  }

  // Limited so that the chunks take hardly more memory than the whole batch: where one block is
  // much longer than the others, the first chunk has nearly all of these.
  int64_t at_once() const override {
    const size_t whole = bytes_of(blocks_.in_total + blocks_.out_total, batch_.dtype);
    return std::min(static_cast<int64_t>((whole + bytes_ - 1) / bytes_), plan_.at_once());
  }
  size_t bytes() const override { return bytes_; }
  Batch batch(int64_t chunk, std::byte* scratch) const override {
    BlockCounts in = counts(chunk, blocks_.in_counts);
    BlockCounts out = counts(chunk, blocks_.out_counts);
    Batch part = chunk_of(batch_);
    part.input = scratch;
    part.output = scratch + output_at_;
    if (part.kind == CollectiveKind::Reducescatter) {
      part.count = out[0];
      part.send_counts = std::move(in);
    } else {
      part.count = in[0];
      part.receive_counts = std::move(out);
    }
    return part;
  }
  std::vector<CopyItem> in(int64_t chunk, std::byte* scratch) const override {
    if (!entry_.mine) return {};
    return copies_of_blocks_in(entry_, blocks_, batch_.dtype, scratch, stretch(chunk));
  }
  std::vector<CopyItem> out(int64_t chunk, const std::byte* scratch) const override {
    if (!entry_.mine || entry_.error) return {};
    return copies_of_blocks_out(entry_, blocks_, batch_.dtype, scratch + output_at_,
                                stretch(chunk));
  }

 private:
  BatchStretch stretch(int64_t chunk) const {
    return {chunk * plan_.elements, plan_.elements};  // a block may end before
  }
  BlockCounts counts(int64_t chunk, const BlockCounts& blocks) const {
    std::vector<int64_t> counts;
    counts.reserve(blocks.size());
    for (const int64_t block : blocks) counts.push_back(plan_.stretch(chunk, block).count);
    return {std::move(counts)};
  }
  size_t packed_bytes(const BlockCounts& blocks) const {
    return bytes_of(total(counts(0, blocks)), batch_.dtype);
  }

  const Batch& batch_;
  const EntryWork& entry_;
  const BlockLayout& blocks_;
  size_t output_at_ = 0;
  size_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<BatchChunks> make_flat_chunks(const ChunkPlan& plan, const Batch& batch,
                                              const BatchCopies& copies) {
  return std::make_unique<FlatChunks>(plan, batch, copies);
}

std::unique_ptr<BatchChunks> make_chunks_of_blocks(const ChunkPlan& plan, const Batch& batch,
                                                   const EntryWork& entry,
                                                   const BlockLayout& blocks) {
  return std::make_unique<ChunksOfBlocks>(plan, batch, entry, blocks);
}

}  // namespace horon::core
