// One batch on its way: tensors ready -> packed -> collective -> unpacked.
//
// Three cases:
// - Host memory: a stage is done when its call returns, and the next one follows. If tensors lie on
//   a device, copies of them are made before and taken back behind it (host_copies.h).
// - Memory with a queue, and an op that enqueues: all stages are enqueued at once, each behind the
//   one before, the first behind the events of the tensors. The host waits for nothing. If the op
//   wants ready tensors, the host asks their events first.
// - Memory with a queue, and an op that the host drives: the host asks the events, without waiting,
//   when the op may start. What the op does not reach is packed. A long batch goes in chunks, whose
//   stages overlap (chunked_batch.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/base/narrow_type.h"
#include "horon/core/base/timeline.h"
#include "horon/core/execution/batch_chunks.h"
#include "horon/core/execution/batch_copies.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/execution/chunked_batch.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/host_copies.h"
#include "horon/core/execution/op_table.h"
#include "horon/core/execution/predecessors.h"
#include "horon/core/execution/prepared_batches.h"
#include "horon/core/execution/scratch_pool.h"
#include "horon/core/execution/sliced_copy.h"

namespace horon::core {

// What the batches of one process set have in common.
struct BatchContext {
  int me = 0;  // this rank's index among the members
  std::vector<int> ranks;
  std::shared_ptr<OpTable> ops;
  std::shared_ptr<Timeline> timeline;  // may be null
  std::shared_ptr<ScratchPool> scratch;
  PreparedBatches prepared = {};
};

class RunningBatch {
 public:
  RunningBatch(BatchWork work, BatchContext& context);
  ~RunningBatch();
  RunningBatch(const RunningBatch&) = delete;
  RunningBatch& operator=(const RunningBatch&) = delete;

  // Goes on as far as it can with one bounded piece of work. Done: nothing uses its memory any
  // more. Throws what ops and domains throw, also for want of memory.
  Progress step(const Predecessors& earlier);
  // It may still take scratch, so batches behind it must not take any before.
  bool needs_scratch() const {
    if (stage_ == Stage::New) return host_copies_ != nullptr;
    return stage_ == Stage::WantsScratch && scratch_bytes_.has_value() && !hopes_for_ops_scratch_;
  }
  // The domain in which it works; null before the first step.
  const MemoryDomain* domain() const { return domain_; }
  // An op that enqueues has started when all of it is in the queue; a batch in chunks when the last
  // one has.
  const CollectiveOp* unstarted_op() const {
    if (stage_ == Stage::InChunks && chunks_ != nullptr && chunks_->has_started()) return nullptr;
    const bool unstarted = stage_ <= Stage::Packed || stage_ == Stage::InChunks ||
                           (stage_ < Stage::Enqueued && op_->enqueues());
    return unstarted ? op_ : nullptr;
  }
  // All work is enqueued, and tell() has not been called yet. Always false for a batch that has
  // nothing in a queue when it is Done.
  bool has_news() const { return done_ != nullptr && !told_; }
  EnqueuedBatch tell();
  FinishedBatch finish(std::optional<Error> error) noexcept;
  // Keeps its memory for ever, since the op or the device may still write to it. Call it once the
  // batch has failed.
  void leak() noexcept;

 private:
  enum class Stage : uint8_t {
    New,
    WantsScratch,
    Waiting,  // for the tensors
    Packing,
    Packed,
    Flying,
    Unpacking,
    InChunks,  // in place of Packing to Unpacking
    Enqueued,
    Finished,
  };

  Progress pass(const Predecessors& earlier);
  Stage next_stage() const;
  bool works_in_place_of_one_tensor() const;
  bool in_16_bits() const { return is_16_bit(spec_.compression); }
  size_t bytes_of(int64_t elements) const;
  void choose_op();
  void make_host_copies();
  bool may_make_host_copies(const Predecessors& earlier) const;
  MemoryDomain& choose_domain() const;
  void describe();
  void place();
  void add_up_entries();
  void place_blocks();
  bool place_apart(const EntryWork& entry);
  std::byte* allocate_output(EntryWork& entry, size_t part, int64_t elements) const;
  int64_t count_of_all() const;
  bool is_source() const;  // of a broadcast
  bool is_packed_on_all_ranks() const;
  Progress take_scratch(const Predecessors& earlier);
  bool take_scratch_of_op(const Predecessors& earlier);
  void give_scratch_back();
  bool tensors_ready();
  bool tensors_here() { return host_copies_ == nullptr || host_copies_->bring(); }
  void end_packing();
  bool host_may_touch_memory() { return packed_ == nullptr || packed_->happened(); }
  void start();
  void end_unpacking();
  std::string title() const;
  void note() const;

  void cut_in_chunks();
  BatchCopies copies() const { return {work_.entries, batch_, is_source()}; }
  SlicedCopy pack();
  SlicedCopy unpack();
  Progress step_chunks(bool may_start);
  void end_copies();

  BatchWork work_;
  BatchContext& context_;
  const std::shared_ptr<const EntrySpec> spec_owner_;  // outlives finish()
  const EntrySpec& spec_;
  Stage stage_ = Stage::New;
  MemoryDomain* domain_ = nullptr;  // in which the op works
  MemoryQueue* queue_ = nullptr;    // of the domain
  bool immediate_ = true;           // the queue
  bool direct_ = true;              // the op reaches the tensors
  Batch batch_;
  CollectiveOp* op_ = nullptr;
  std::shared_ptr<const BlockLayout> blocks_;  // moves_blocks()
  bool packs_blocks_ = false;                  // moves_blocks(): a group, by way of the scratch
  // The bytes of scratch that it needs, and the offsets of the op's input and output there; empty:
  // none.
  std::optional<size_t> scratch_bytes_, input_at_, output_at_;
  std::unique_ptr<HostCopies> host_copies_;  // null: none is needed, or all has been taken back
  bool hopes_for_ops_scratch_ = false;       // until it may start: then the op decides
  ScratchPool::Buffer scratch_;
  SharedScratch* ops_scratch_ = nullptr;  // scratch_ is this
  size_t ready_ = 0;  // entries whose memory is ready, or for which the queue waits
  SlicedCopy copy_;
  std::shared_ptr<Event> packed_;  // an op that the host drives must not touch the memory before
  std::unique_ptr<InFlight> flight_;
  std::unique_ptr<const BatchChunks>
      planned_chunks_;  // until chunks_ has them; null: it goes whole
  std::unique_ptr<ChunkedBatch> chunks_;
  std::shared_ptr<Event> done_;  // everything that was enqueued; null: there is nothing
  bool told_ = false;            // tell() has been called
  Timeline::Clock::time_point began_, started_;  // only while a timeline records
  LiveRange range_;                              // for a profiler
};

}  // namespace horon::core
