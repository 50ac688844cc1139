// What a batch copies into the memory of its op, and back: all at once or in chunks. And what it
// brings to the host first.
#include <memory>
#include <utility>

#include "horon/core/execution/batch_copies.h"
#include "horon/core/execution/chunked_batch.h"
#include "horon/core/execution/running_batch.h"

namespace horon::core {

void RunningBatch::make_host_copies() {
  host_copies_ =
      std::make_unique<HostCopies>(work_.entries, blocks_.get(), is_source(), *context_.scratch);
}

// The same conditions as for scratch (take_scratch()).
bool RunningBatch::may_make_host_copies(const Predecessors& earlier) const {
  return earlier.may_take_scratch(*domain_) &&
         (earlier.is_oldest_in(*domain_) || host_copies_->has_room());
}

SlicedCopy RunningBatch::pack() {
  if (!scratch_bytes_) return {};
  if (moves_blocks(spec_.kind)) {
    if (!packs_blocks_) return {};
    return {*queue_, copies_of_blocks_in(work_.entries.front(), *blocks_, batch_.dtype,
                                         const_cast<std::byte*>(batch_.input))};
  }
  return {*queue_, copies().in(scratch_.memory.get(), {0, batch_.count})};
}

SlicedCopy RunningBatch::unpack() {
  if (!scratch_bytes_ && !in_16_bits()) return {};
  if (moves_blocks(spec_.kind)) {
    const EntryWork& entry = work_.entries.front();
    if (!packs_blocks_ || entry.error) return {};
    return {*queue_, copies_of_blocks_out(entry, *blocks_, batch_.dtype, batch_.output)};
  }
  return {*queue_, copies().out(batch_.output, {0, batch_.count})};
}

// Even where nothing is packed: work of the batch that had this scratch before may still run.
void RunningBatch::end_packing() {
  if (!immediate_ && scratch_bytes_ && !op_->enqueues()) packed_ = queue_->record();
}

void RunningBatch::end_unpacking() {
  if (!immediate_ && (scratch_bytes_ || in_16_bits() || op_->enqueues())) done_ = queue_->record();
  if (scratch_bytes_) give_scratch_back();
  if (host_copies_ != nullptr) done_ = host_copies_->take_back();
}

// Cuts where the op does not reach the tensors and cutting changes no bits. All ranks cut alike,
// since the op finds its peers by counting its batches.
void RunningBatch::cut_in_chunks() {
  if (direct_ || op_->enqueues() || !op_->same_in_parts(batch_)) return;
  if (moves_blocks(spec_.kind)) {
    const bool reduces = spec_.kind == CollectiveKind::Reducescatter;
    const ChunkPlan plan =
        plan_chunks_of_blocks(batch_.dtype, reduces ? blocks_->in_counts : blocks_->out_counts);
    if (!plan.is_cut()) return;
    planned_chunks_ = make_chunks_of_blocks(plan, batch_, work_.entries.front(), *blocks_);
  } else {
    const ChunkPlan plan = plan_chunks(batch_);
    if (!plan.is_cut()) return;
    planned_chunks_ = make_flat_chunks(plan, batch_, copies());
  }
  scratch_bytes_ = ChunkedBatch::scratch_bytes(*planned_chunks_);
  input_at_ = output_at_ = 0;
}

Progress RunningBatch::step_chunks(bool may_start) {
  if (chunks_ == nullptr) {
    chunks_ = std::make_unique<ChunkedBatch>(*op_, std::move(planned_chunks_),
                                             scratch_.memory.get(), *domain_);
  }
  const bool had_begun = chunks_->has_begun();
  const Progress progress = chunks_->step(may_start);
  if (!had_begun && chunks_->has_begun() && records(context_.timeline)) {
    started_ = Timeline::Clock::now();
  }
  if (progress == Progress::Done) done_ = chunks_->done();
  return progress;
}

// Scratch and copies are given back only now, after the event: the queue of their next user does
// not wait for the copy back.
void RunningBatch::end_copies() {
  if (host_copies_ != nullptr) {
    host_copies_->end(/*in_use=*/false);
    host_copies_.reset();
  }
  if (chunks_ == nullptr) return;
  chunks_.reset();
  context_.scratch->give_back(*domain_, std::move(scratch_), nullptr);
}

}  // namespace horon::core
