// Runs batches: waits for their tensors, packs several entries into one buffer, starts the op,
// polls it, unpacks.
//
// Every batch is a small machine of its own, so that the packing of one overlaps the collective of
// another. Ops that find their peers by the order of start are started in the order of the batches,
// on every rank the same (PROTOCOL.md, order rule). Nothing blocks. One thread at a time.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/op_table.h"
#include "horon/core/execution/predecessors.h"
#include "horon/core/execution/running_batch.h"

namespace horon::core {

class Executor {
 public:
  struct Parts {
    int rank = 0;  // this rank's index among the members
    int size = 1;
    std::vector<int> ranks;  // of all members; empty: 0, 1, ...
    std::shared_ptr<OpTable> ops;
    // The domains of the set, and the scratch of its batches and of its ops. A batch for which the
    // scratch has no room waits, unless it is the oldest one under way.
    std::shared_ptr<ScratchPool> scratch;
    std::shared_ptr<Timeline> timeline;  // may be null
  };

  explicit Executor(Parts parts);
  ~Executor();

  void enqueue(BatchWork work);

  enum class Pace : uint8_t {
    Idle,     // nothing is in flight
    Busy,     // something moved: step again soon
    Polling,  // the end of something in flight does not ring the doorbell
    Ringing,  // everything in flight will ring the doorbell
  };
  // Moves every batch a little. Finished batches are appended in the order in which they finish;
  // one whose op, domain or event throws finishes with that as its error. A batch whose work has
  // been enqueued on a device is appended to `enqueued`, before it finishes.
  Pace step(std::vector<FinishedBatch>& finished, std::vector<EnqueuedBatch>& enqueued);

  // The job is over: gives up everything in flight. A peer, MPI or a device may still write there,
  // so all that the batches hold is kept for ever. Then the ops abort what they have enqueued.
  // Finish the handles first. Needs no memory.
  void abandon() noexcept;

  const OpTable& ops() const { return *context_.ops; }
  const ScratchPool& scratch() const { return *context_.scratch; }

 private:
  BatchContext context_;
  // The list nodes of finished batches are used again.
  using Batches = std::list<std::optional<RunningBatch>>;
  Batches running_;  // in the order of the log
  Batches spare_;
  Predecessors earlier_;
};

}  // namespace horon::core
