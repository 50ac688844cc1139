#include "horon/core/execution/chunked_batch.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::core {

ChunkedBatch::ChunkedBatch(CollectiveOp& op, std::unique_ptr<const BatchChunks> chunks,
                           std::byte* scratch, MemoryDomain& domain)
    : op_(op),
      chunks_(std::move(chunks)),
      scratch_(scratch),
      there_(domain.queue()),
      back_(domain.queue_back()),
      places_(static_cast<size_t>(chunks_->at_once())) {
  for (size_t i = 0; i < places_.size(); ++i) copy_in(places_[i], static_cast<int64_t>(i));
}

size_t ChunkedBatch::scratch_bytes(const BatchChunks& chunks) {
  return static_cast<size_t>(chunks.at_once()) * chunks.bytes();
}

Progress ChunkedBatch::step(bool may_start) {
  bool moved = start_some(may_start);
  // If earlier batches stand before it, one of them moves first.
  Progress next = may_start && waits_for_copy() ? Progress::Polling : Progress::Ringing;
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[(turn_ + i) % places_.size()];
    if (place.flight == nullptr) continue;
    const Progress progress = place.flight->step();
    if (progress == Progress::Done) {
      copy_back(place);
      moved = true;
    }
    next = std::min(next, progress);
    // One chunk uses up the time of a step; the others have their turn in the next steps.
    if (progress == Progress::Advanced || progress == Progress::Done) {
      turn_ = (turn_ + i + 1) % places_.size();
      break;
    }
  }
  if (over_ == chunks_->count()) return Progress::Done;
  return moved ? Progress::Advanced : next;
}

std::byte* ChunkedBatch::memory(const Place& place) const {
  const auto index = static_cast<size_t>(&place - places_.data());
  return scratch_ + index * chunks_->bytes();
}

// The event is recorded even where nothing is copied: work on this scratch by its last user may
// still run, and so may work that the memory of the results must wait for (AllocateOutput). No
// chunk is copied back before the event has happened.
void ChunkedBatch::copy_in(Place& place, int64_t chunk) {
  place.chunk = chunk;
  const std::vector<CopyItem> items = chunks_->in(chunk, memory(place));
  if (!items.empty()) there_.copy(items);
  place.copied_in = there_.record();
}

// The next chunk to start is in its place: the one before it there has been copied back.
bool ChunkedBatch::waits_for_copy() const {
  return !has_started() && places_[next_place()].chunk == started_;
}

// Starts chunks in their order. False: none could be started.
bool ChunkedBatch::start_some(bool may_start) {
  bool moved = false;
  while (may_start && waits_for_copy() && places_[next_place()].copied_in->happened()) {
    start(places_[next_place()]);
    moved = true;
  }
  return moved;
}

void ChunkedBatch::start(Place& place) {
  place.flight = op_.start(chunks_->batch(place.chunk, memory(place)));
  ++started_;
}

void ChunkedBatch::copy_back(Place& place) {
  place.flight.reset();
  const std::vector<CopyItem> items = chunks_->out(place.chunk, memory(place));
  if (!items.empty()) back_.copy(items);
  ++over_;
  const int64_t next = place.chunk + static_cast<int64_t>(places_.size());
  if (next >= chunks_->count()) return;
  if (!items.empty() && &back_ != &there_) {
    const bool waits = there_.wait_for(*back_.record());
    HORON_CHECK(waits, "the queues of one domain wait for each other");
  }
  copy_in(place, next);
}

}  // namespace horon::core
