// Runs batches: waits for their tensors, packs several entries into one buffer, starts the op,
// polls it, unpacks.
//
// Every batch is a small machine of its own, so that the packing of one overlaps the collective of
// another; the ops are started in the order of the batches, on every rank the same (PROTOCOL.md,
// order rule). Nothing blocks. One thread.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/op_table.h"

namespace horon::core {

class Timeline;

class Executor {
 public:
  struct Parts {
    int rank = 0;
    int size = 1;
    std::shared_ptr<OpTable> ops;
    std::vector<std::unique_ptr<MemoryDomain>> domains;  // one per device kind in use
    std::shared_ptr<Timeline> timeline;                  // may be null
  };

  explicit Executor(Parts parts);
  ~Executor();

  void enqueue(BatchWork work);

  enum class Pace : uint8_t {
    Idle,     // nothing is in flight
    Busy,     // something moved: step again soon
    Polling,  // something in flight announces itself to nobody
    Ringing,  // everything in flight will ring the doorbell
  };
  // Moves every batch a little. Finished batches are appended in the order in which they finish.
  Pace step(std::vector<FinishedBatch>& finished);

  // The job is over: gives up everything in flight and returns it. Memory that an op may still
  // write is kept for ever.
  std::vector<FinishedBatch> abandon(const Error& error);

  const OpTable& ops() const { return *parts_.ops; }

 private:
  class Running;
  class Scratch;

  Parts parts_;
  std::unique_ptr<Scratch> scratch_;
  std::deque<std::unique_ptr<Running>> running_;  // in the order of the log
};

}  // namespace horon::core
