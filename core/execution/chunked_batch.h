// A batch that goes in chunks by way of scratch, where its op does not reach the tensors: while the
// op has some chunks, the next one is copied in and the one before is copied back. However long the
// batch is, it takes no more scratch than a few chunks.
//
// Each chunk is a batch of its own for the op, which finds its peers by the order of start. So no
// later batch of that order starts before the last chunk of this one has started. The executor
// keeps that order and packs, so this is a part of the executor, not an op around another op. For
// users it stays one collective.
//
// The host waits for nothing: it asks whether a chunk has been copied in. On the way back two
// queues keep the order: a chunk is copied in only behind the copy back of the chunk that had its
// place in the scratch before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/execution/batch_chunks.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/event.h"
#include "horon/core/execution/memory_domain.h"

namespace horon::core {

// One thread at a time. The scratch must not be used again, and what is under way not be destroyed,
// before done() has happened, or for ever if a call has thrown.
class ChunkedBatch {
 public:
  // `scratch` has scratch_bytes(), in whole cache lines. The op and the domain outlive this. The
  // tensors are ready.
  ChunkedBatch(CollectiveOp& op, std::unique_ptr<const BatchChunks> chunks, std::byte* scratch,
               MemoryDomain& domain);
  static size_t scratch_bytes(const BatchChunks& chunks);

  // As InFlight::step(): Done when all work is enqueued. `may_start`: no earlier batch stands
  // before this one in the order of its op.
  Progress step(bool may_start);
  bool has_begun() const { return started_ > 0; }  // a chunk is in the op, or has been
  bool has_started() const { return started_ == chunks_->count(); }  // all have
  // After Done: happens when the results are in the tensors.
  std::shared_ptr<Event> done() { return back_.record(); }

 private:
  // Holds one chunk at a time; chunk n is followed by chunk n + BatchChunks::at_once().
  struct Place {
    int64_t chunk = 0;
    std::shared_ptr<Event> copied_in;
    std::unique_ptr<InFlight> flight;  // null: not started, or over
  };

  std::byte* memory(const Place& place) const;
  void copy_in(Place& place, int64_t chunk);
  size_t next_place() const { return static_cast<size_t>(started_) % places_.size(); }
  bool waits_for_copy() const;
  bool start_some(bool may_start);
  void start(Place& place);
  void copy_back(Place& place);

  CollectiveOp& op_;
  const std::unique_ptr<const BatchChunks> chunks_;
  std::byte* const scratch_;
  MemoryQueue& there_;
  MemoryQueue& back_;
  std::vector<Place> places_;
  size_t turn_ = 0;  // the place that is stepped first
  int64_t started_ = 0;
  int64_t over_ = 0;
};

}  // namespace horon::core
