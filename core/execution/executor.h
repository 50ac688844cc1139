// Runs batches: waits for their tensors, packs several entries into one buffer, starts the op,
// polls it, unpacks.
//
// Every batch is a small machine of its own, so that the packing of one overlaps the collective of
// another. Ops that find their peers by the order of start are started in the order of the batches,
// on every rank the same (PROTOCOL.md, order rule). Nothing blocks. One thread at a time.
//
// A limited number of batches is under way; the others stand in line, in the order of the log. So a
// pass costs the same however many there are, and a device that falls behind is given no more work.
// The line holds up nobody for ever: the first batch that has not finished everywhere is under way
// on every rank.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/lent_ops.h"
#include "horon/core/execution/op_table.h"
#include "horon/core/execution/predecessors.h"
#include "horon/core/execution/running_batch.h"

namespace horon::core {

class Executor {
 public:
  static constexpr size_t kUnderWayMax = 64;

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
    Driving,  // something in flight goes on only while it is stepped
    Polling,  // the end of something in flight does not ring the doorbell
    Ringing,  // everything in flight will ring the doorbell
  };
  // Moves every batch a little. Finished batches are appended in the order in which they finish;
  // one whose op, domain or event throws finishes with that as its error. A batch whose work has
  // been enqueued on a device is appended to `enqueued`, before it finishes.
  Pace step(std::vector<FinishedBatch>& finished, std::vector<EnqueuedBatch>& enqueued);

  // The job is over: gives up everything in flight. A peer, MPI or a device may still write to its
  // memory, so all that the batches hold is kept for ever. Then the ops begin to abort what they
  // have enqueued. Finish the handles first. Needs no memory.
  void abandon() noexcept;
  // After abandon() of all sets: waits until the ops have aborted, or `limit` has passed.
  void finish_abort(std::chrono::steady_clock::time_point limit) noexcept {
    context_.ops->finish_abort(limit);
  }

  // For threads of the program. May outlive the executor.
  std::shared_ptr<const LentOps> lent_ops() const { return lent_ops_; }
  const ScratchPool& scratch() const { return *context_.scratch; }

 private:
  BatchContext context_;
  const std::shared_ptr<LentOps> lent_ops_;
  void begin(BatchWork work);

  // The list nodes of finished batches are used again.
  using Batches = std::list<std::optional<RunningBatch>>;
  Batches running_;               // in the order of the log; at most kUnderWayMax
  std::list<BatchWork> in_line_;  // behind them, in the same order
  Batches spare_;
  Predecessors earlier_;
};

}  // namespace horon::core
