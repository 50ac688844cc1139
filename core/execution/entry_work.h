// One entry of a batch, with this rank's memory for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/base/entry_spec.h"
#include "horon/core/base/error.h"
#include "horon/core/execution/event.h"

namespace horon::core {

// A stretch of contiguous elements; in place if input == output.
struct MemoryPart {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // moves_blocks(): null, see EntryWork::allocate_output
  int64_t count = 0;            // elements
  // Allreduce: false if nobody reads the output, which then is other memory than the input. An op
  // may then skip writing it.
  bool wants_output = true;
};

// What comes from one member of the set, in memory that the caller has given for it.
struct OutputBlock {
  std::byte* data = nullptr;
  int64_t count = 0;  // elements
};

class MemoryQueue;

// The memory for the result of a part, once its number of elements is known. The result is written
// behind what has been enqueued in `queue` until this returns, so memory of a stream-ordered
// allocator will do. Null, or what it throws, is the error of this rank's entry alone.
using AllocateOutput = std::function<std::byte*(size_t part, int64_t elements, MemoryQueue& queue)>;

struct EntryWork {
  uint64_t ticket = 0;  // given back when the entry has finished
  bool mine = true;     // false: this rank has joined and takes part with neutral elements
  std::string name;
  std::shared_ptr<const EntrySpec> spec;
  std::vector<MemoryPart> memory;
  bool narrowed = false;                   // as in Submission
  bool copied_to_host = false;             // as in Submission
  AllocateOutput allocate_output;          // moves_blocks()
  std::vector<OutputBlock> output_blocks;  // as in Submission
  std::unique_ptr<Event> ready;            // when the memory has been written; null: it has
  std::vector<int64_t> extents;            // has_own_rows(): as in StartEntry
  std::vector<int64_t> received;           // moves_blocks(), when finished: as in Outcome
  // When finished: what went wrong on this rank alone, while the collective went on.
  std::optional<Error> error;
};

struct BatchWork {
  uint64_t sequence = 0;
  int contributors = 1;  // what Average divides by
  std::vector<EntryWork> entries;
};

// All of a batch has been enqueued on its device. Its memory stays in use until it has finished.
struct EnqueuedBatch {
  struct Entry {
    uint64_t ticket = 0;
    std::vector<int64_t> received;  // as in EntryWork
    std::optional<Error> error;     // as in EntryWork
  };
  std::shared_ptr<Event> done;  // the results are in memory
  std::vector<Entry> entries;   // without those of ranks that have joined
};

// Nothing uses the memory of a batch any more.
struct FinishedBatch {
  uint64_t sequence = 0;
  bool was_enqueued = false;  // an EnqueuedBatch was given out for it
  std::vector<EntryWork> entries;
  std::optional<Error> error;  // the batch failed: nothing can be said about the outputs
};

}  // namespace horon::core
