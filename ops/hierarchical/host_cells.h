// Where the ranks of one host meet for a collective between hosts: each publishes where its memory
// lies, and each lane how many of its chunks are over.
//
// Several cells are used in turn, one for each collective. A word's upper half counts the uses of
// the cell, and begins again after 2^32 of them; its lower half counts the chunks of this use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "horon/core/host/local_group.h"
#include "horon/core/host/shared_counter.h"
#include "horon/ops/host/waiters.h"

namespace horon::ops {

class HostCells {
 public:
  static constexpr uint64_t kCells = 8;

  // What the others use of a rank's memory.
  enum class Lies : uint32_t {
    Nowhere,   // nothing of it
    InPlace,   // the memory itself
    InWindow,  // a copy, of which not all may be there yet
  };
  // Written by its rank. The plain fields are written before `ready` says that the cell is in use.
  struct alignas(64) Contribution {
    // How many chunks the others may read (input) and write (output): in the rank's own memory, or
    // in their place in the window, which is free again.
    std::atomic<uint64_t> ready;
    Lies input_lies;
    Lies output_lies;
    core::SharedAddress input;
    core::SharedAddress output;
  };

  // `area`: bytes() of zeroed memory that all ranks of the host share, 64-byte aligned.
  HostCells(core::LocalGroup& group, std::byte* area);
  static size_t bytes(int ranks);

  Contribution& contribution(uint64_t cell, int rank) const;
  // How many chunks of a lane are over.
  std::atomic<uint64_t>& over(uint64_t cell, int lane) const;
  // How often each rank has left the cell, as one number.
  std::atomic<uint64_t>& left(uint64_t cell, int rank) const;

  Waiters& progress() { return progress_; }
  Waiters& reuse() { return reuse_; }

 private:
  static size_t cell_bytes(int ranks);
  std::byte* cell(uint64_t index) const;

  const int ranks_;
  Waiters progress_;  // ranks that wait for chunks that are ready, or over
  Waiters reuse_;     // ranks that wait for a cell that all have left
  std::byte* const cells_;
};

}  // namespace horon::ops
