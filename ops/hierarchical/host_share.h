// One batch's memory on one host: where the inputs and outputs of its ranks lie in this process,
// which chunks all of them have ready, and which are over.
//
// A rank whose memory the others can't map copies it, chunk by chunk, into scratch memory that they
// can map, and copies the results back. Chunks that it drives itself stay where they are. The
// scratch memory has room for some chunks, the window: the next chunk takes the place of one that
// is copied back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/hierarchical/chunks.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/host_cells.h"
#include "horon/ops/host/scratch_loan.h"

namespace horon::ops {

class HostShare {
 public:
  struct Parts {
    const HostsLayout* layout = nullptr;
    const Chunks* chunks = nullptr;
    const core::Batch* batch = nullptr;
    // Both null if this rank is alone on its host.
    HostCells* cells = nullptr;
    core::LocalGroup* group = nullptr;
    core::ScratchPool* scratch = nullptr;
    uint64_t number = 0;  // of the collective, the same on all ranks
  };
  explicit HostShare(Parts parts);

  // Publishes this rank's memory, if all ranks have left the cell. False: they have not; this rank
  // is announced and will be rung.
  bool post();
  // Whether all ranks of this host have this chunk ready.
  bool is_ready(int64_t chunk) const;
  // Call it once a chunk is ready: maps the memory of one more rank, which may throw as
  // LocalGroup::map() does. False: the memory of all ranks is mapped.
  bool map_next_rank();
  // For a chunk that is ready, when all ranks are mapped; valid until the next call. Null for a
  // rank that does not give, or take.
  const std::vector<const std::byte*>& inputs(int64_t chunk);
  const std::vector<std::byte*>& outputs(int64_t chunk);
  // The first so many chunks of this rank's lane are over.
  void set_over(int64_t chunks_of_lane);
  // Copies at most one chunk out and one in. Returns a measure of the bytes; 0: nothing to do now.
  int64_t copy();
  // All chunks of all lanes are over, and copied out.
  bool over() const;
  // Call it before sleeping: a rank that has something for this one will ring. Look again after
  // this.
  void announce();
  void leave();

 private:
  using Lies = HostCells::Lies;
  // One rank's memory, seen from this process. `place`: where all of it begins, or the window.
  struct Memory {
    std::byte* place = nullptr;
    Lies lies = Lies::Nowhere;
  };

  bool alone() const { return parts_.cells == nullptr; }
  uint64_t word(int64_t chunks) const { return (use_ << 32) + static_cast<uint64_t>(chunks); }
  // Whether a word says at least so many chunks of this use. Words are compared for the same use:
  // nobody is in a later one, and an older one may look greater, since the uses wrap.
  bool has_reached(const std::atomic<uint64_t>& word, int64_t chunks) const;
  bool is_own(int64_t chunk) const { return chunk % layout().lanes == layout().local_rank; }
  bool is_over(int64_t chunk) const;
  void publish(int64_t chunks);
  Memory own(const std::byte* data, int64_t bytes) const;
  Memory theirs(int local_rank, Lies lies, const core::SharedAddress& address) const;
  std::byte* find(const Memory& memory, int64_t chunk, int64_t begin) const;
  int64_t copy_in();
  int64_t copy_out();
  const HostsLayout& layout() const { return *parts_.layout; }
  int64_t count() const { return parts_.chunks->count(); }
  bool stages() const { return input_lies_ == Lies::InWindow || output_lies_ == Lies::InWindow; }
  int64_t window() const;  // chunks; the same on all ranks of the host
  int64_t offset_in_window(int64_t chunk) const {
    return chunk % window() * parts_.chunks->bytes_max();
  }
  std::byte* in_window(int64_t chunk) const { return staging_.memory() + offset_in_window(chunk); }

  const Parts parts_;
  const uint64_t cell_;
  const uint64_t use_;
  // How the others reach this rank's memory.
  Lies input_lies_ = Lies::Nowhere;
  Lies output_lies_ = Lies::Nowhere;
  ScratchLoan staging_;
  int64_t copied_in_ = 0;  // chunks
  int64_t copied_out_ = 0;
  std::vector<Memory> input_of_, output_of_;  // [local rank], of those that are mapped
  std::vector<const std::byte*> inputs_;      // of one chunk
  std::vector<std::byte*> outputs_;
};

}  // namespace horon::ops
