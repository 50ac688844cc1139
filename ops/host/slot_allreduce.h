// Allreduce of a few kilobytes among the ranks of one host: one synchronisation.
//
// Every rank writes its input into a slot of its own in the shared area and raises a flag; when all
// flags are up, every rank reduces all slots by itself, in rank order, so all get the same bits.
// Inputs of up to 48 bytes travel in the cache line of the flag. There are several sets of slots,
// used in turn; a rank takes a set again when all ranks have read what was there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/host/waiters.h"

namespace horon::ops {

class SlotAllreduce {
 public:
  // `area`: area_bytes() of zeroed memory that all ranks share, 64-byte aligned.
  SlotAllreduce(core::LocalGroup& group, std::byte* area);
  static size_t area_bytes(int ranks);
  // The longest input. Smaller for more ranks, as each of them reads the inputs of all.
  static int64_t payload_bytes_max(int ranks);

  std::unique_ptr<core::InFlight> start(core::Batch batch);

 private:
  class Running;
  static constexpr uint64_t kSets = 8;
  static constexpr size_t kInlineBytes = 48;

  struct alignas(64) Header {
    std::atomic<uint64_t> sequence;  // number of the allreduce that is here, from 1
    uint64_t read_through;           // its rank has finished all allreduces below this number
    std::byte inline_payload[kInlineBytes];
  };
  struct alignas(64) Line {
    std::atomic<uint64_t> value;
  };

  Header& header(uint64_t number, int rank) const;
  std::byte* payload(uint64_t number, int rank, size_t bytes) const;
  // Whether every rank has read what this rank's slot holds from `kSets` allreduces ago.
  bool slot_is_free(uint64_t number);
  void note_finished(uint64_t number);

  const int rank_;
  const int ranks_;
  Waiters arrival_;  // for the last input
  Waiters reuse_;    // for a free slot
  Header* headers_;
  Line* read_through_;  // [rank]: as in Header, for those who find no later header
  std::byte* payloads_;
  uint64_t next_ = 0;
  uint64_t own_through_ = 0;
  bool finished_[kSets] = {};             // finished here, but an earlier one is not
  std::vector<uint64_t> known_through_;   // [rank]
  std::vector<const std::byte*> inputs_;  // [rank], of one reduction
};

}  // namespace horon::ops
