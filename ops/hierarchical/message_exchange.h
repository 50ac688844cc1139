// The collectives that move blocks, among ranks on several hosts: every two ranks exchange theirs
// by messages, several of which are under way at a time. Reducescatter adds them in the order of
// the ranks, as they come.
#pragma once

#include <cstdint>
#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/scratch_pool.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

// One for all kinds of a set: it gives the exchanges their tags. One thread at a time.
class MessageExchange {
 public:
  MessageExchange(std::shared_ptr<Messages> messages, std::shared_ptr<core::ScratchPool> scratch,
                  int rank, int size);

  // Allgather, Reducescatter, Alltoall, Gather or Scatter. In the same order on all ranks. The
  // exchange must outlive what it returns.
  std::unique_ptr<core::InFlight> start(core::Batch batch);

 private:
  class Running;
  // More would not make the wire faster.
  static constexpr uint64_t kAtOnce = 4;

  void note_ended(uint64_t number);

  const std::shared_ptr<Messages> messages_;
  const std::shared_ptr<core::ScratchPool> scratch_;
  const int rank_;
  const int size_;
  uint64_t next_ = 0;
  uint64_t ended_through_ = 0;    // all exchanges below have ended on this rank
  bool ended_[2 * kAtOnce] = {};  // those from there on
};

}  // namespace horon::ops
