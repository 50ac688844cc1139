// One batch on its way: tensors ready -> packed -> op started -> op done -> unpacked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "horon/core/base/timeline.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/op_table.h"
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
  ScratchPool scratch;
  PreparedBatches prepared = {};
};

class RunningBatch {
 public:
  RunningBatch(BatchWork work, BatchContext& context);
  ~RunningBatch();
  RunningBatch(const RunningBatch&) = delete;
  RunningBatch& operator=(const RunningBatch&) = delete;

  bool started() const { return stage_ > Stage::Packed; }
  // Goes on as far as it can with one bounded piece of work. `may_start`: all earlier batches have
  // started their ops. Throws what ops and domains throw, also for want of memory.
  Progress step(bool may_start);
  FinishedBatch finish(std::optional<Error> error);
  // The op or a copy may still write its memory: that is kept for ever. Call it once the batch has
  // failed.
  void leak();

 private:
  enum class Stage : uint8_t { Waiting, Packing, Packed, Flying, Unpacking, Finished };

  bool tensors_ready();
  bool works_in_place_of_one_tensor() const;
  void describe();
  bool compressed() const { return spec_.compression != Compression::None; }
  size_t bytes_of(int64_t elements) const;
  void lay_out();
  void move_prescale_to_result();
  void lay_out_blocks();
  std::byte* allocate_output(EntryWork& entry, size_t part, int64_t elements) const;
  int64_t count_of_all() const;
  template <class Visit>
  void for_each_part(const Visit& visit);
  void add_neutral(std::vector<CopyItem>& items);
  SlicedCopy copy_blocks(bool in);
  SlicedCopy pack();
  SlicedCopy unpack();
  SlicedCopy copy_of(std::vector<CopyItem> items);
  void start();
  void note() const;

  BatchWork work_;
  BatchContext& context_;
  const std::shared_ptr<const EntrySpec> spec_owner_;  // outlives finish()
  const EntrySpec& spec_;
  Stage stage_ = Stage::Waiting;
  Batch batch_;
  int64_t facts_count_ = 0;
  CollectiveOp* op_ = nullptr;
  BlockLayout blocks_;   // moves_blocks()
  bool packed_ = false;  // moves_blocks(): a group, by way of the scratch buffer
  ScratchPool::Buffer scratch_buffer_;
  std::vector<std::byte> neutral_;  // joined: a piece of neutral elements, copied again and again
  SlicedCopy copy_;
  std::unique_ptr<InFlight> flight_;
  Timeline::Clock::time_point began_, started_;  // only while a timeline is written
};

}  // namespace horon::core
