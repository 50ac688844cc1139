// What a backend implements: one collective as an object that is started and then stepped, never
// blocking for a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::core {

// One collective on contiguous memory. Pointers stay valid until the InFlight is destroyed.
struct Batch {
  uint64_t sequence = 0;  // position in the set's order; the same on every rank
  CollectiveKind kind = CollectiveKind::Allreduce;
  DataType dtype = DataType::Float32;
  ReduceOp reduce_op = ReduceOp::Sum;
  DeviceKind device = DeviceKind::Host;
  int root = 0;  // its index among the members

  // Floating types: result = postscale / divisor * reduce(prescale * input), 16-bit types in fp32
  // with one rounding at the end. Integers: Average divides the sum by divisor, rounding toward
  // zero; the scales are 1.
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;

  // Allreduce, Broadcast: `count` elements; in place if input == output. Barrier: no memory.
  //
  // The others move blocks, one for each member, in the order of members, one behind the other:
  // send_counts[m] elements of the input are for member m, receive_counts[m] elements of the output
  // come from it. Allgather sends all of its `count` elements to everybody (send_counts is empty);
  // Reducescatter gets one block of `count` elements, reduced over all members (receive_counts is
  // empty).
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t count = 0;
  std::vector<int64_t> send_counts;
  std::vector<int64_t> receive_counts;
};

enum class Progress : uint8_t {
  Done,      // finished on this rank; do not step again
  Advanced,  // did something: step again soon
  Polling,   // waits for something that nobody will announce
  Ringing,   // waits for a peer, who will ring the doorbell
};

class InFlight {
 public:
  virtual ~InFlight() = default;
  // Does a bounded piece of work (well under a millisecond) and returns. What it throws
  // is the error of the batch, which ends the job.
  virtual Progress step() = 0;
};

// Facts that decide whether an op can run a batch; all ranks know the same facts, so all choose the
// same op.
struct BatchFacts {
  CollectiveKind kind = CollectiveKind::Allreduce;
  DataType dtype = DataType::Float32;
  ReduceOp reduce_op = ReduceOp::Sum;
  DeviceKind device = DeviceKind::Host;
  int64_t count = 0;  // elements (those that move blocks: of all members together)
};

class CollectiveOp {
 public:
  virtual ~CollectiveOp() = default;
  // "shm_allreduce", "mpi_broadcast": what users type and see.
  virtual std::string_view name() const = 0;
  // Empty if this op can run such a batch, else the reason why not. Pure; the same on every rank.
  virtual std::string refusal(const BatchFacts& facts) const = 0;
  // Batches are started in the order of their sequence on every rank; several may be in flight.
  virtual std::unique_ptr<InFlight> start(Batch batch) = 0;
};

}  // namespace horon::core
