// What a backend implements: one collective as an object that is started and then stepped, never
// blocking for a peer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"
#include "horon/core/execution/block_counts.h"
#include "horon/core/execution/piece_sizes.h"
#include "horon/core/execution/shared_scratch.h"

namespace horon::core {

class MemoryQueue;

// One collective on contiguous memory. Pointers stay valid until the InFlight is destroyed, and
// until what it has enqueued has happened.
struct Batch {
  uint64_t sequence = 0;  // position in the set's order; the same on every rank
  CollectiveKind kind = CollectiveKind::Allreduce;
  DataType dtype = DataType::Float32;
  ReduceOp reduce_op = ReduceOp::Sum;
  DeviceKind device = DeviceKind::Host;
  int root = 0;  // its index among the members

  // Floating types: result = postscale / divisor * reduce(prescale * input), 16-bit types in fp32
  // with one rounding at the end (Adasum: one after each scale and each two ranks). Integers:
  // Average divides the sum by divisor, rounding toward zero; the scales are 1.
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
  // Only for ops with writes_blocks_apart(): where the block from each member goes, in place of
  // `output`. This rank's own block may be the part of the input that it copies. Some ranks may
  // give these and others not. Empty: the blocks go one behind the other into `output`.
  std::vector<std::byte*> output_blocks;
  bool wants_output = true;  // of this rank, as MemoryPart::wants_output
  int64_t count = 0;
  bool int8_between_hosts = false;  // Compression::Int8: float32 that is one entry
  int64_t shortest_entry = 0;       // elements of the shortest packed entry; 0: it is one entry
  int64_t piece_bytes = 0;          // Allreduce: EntrySpec::piece_bytes
  bool captured = false;            // EntrySpec::captured
  BlockCounts tensor_counts;        // Adasum: elements of each tensor, in the order of the memory
  BlockCounts send_counts;
  BlockCounts receive_counts;

  MemoryQueue* queue = nullptr;  // of the memory; null or immediate() for host memory
};

enum class Progress : uint8_t {
  Done,      // finished on this rank; do not step again
  Advanced,  // did something: step again soon
  Driving,   // as Polling, and what it waits for goes on only while it is stepped, on all ranks
  Polling,   // waits for something that does not ring the doorbell
  Ringing,   // waits for a peer, who will ring the doorbell
};

class InFlight {
 public:
  virtual ~InFlight() = default;
  // Does a bounded piece of work (well under a millisecond) and returns. What it throws is the
  // error of the batch, which ends the job.
  virtual Progress step() = 0;
  // For ops that enqueue: called now and then after step() has said Done, until the work has
  // happened. Throws if it never will, because a peer or the device has failed.
  virtual void watch() {}
};

// Facts that decide whether an op can run a batch. All ranks know the same facts, so they choose
// the same op.
struct BatchFacts {
  CollectiveKind kind = CollectiveKind::Allreduce;
  DataType dtype = DataType::Float32;
  ReduceOp reduce_op = ReduceOp::Sum;
  DeviceKind device = DeviceKind::Host;
  int64_t count = 0;  // elements (those that move blocks: of all members together)
  bool captured = false;
};

// How the batches of the ranks find each other. This decides which batches may start before an
// earlier one that is not ready. Ops that enqueue keep the order of the log, whatever they say.
enum class StartOrder : uint8_t {
  Log,  // by the order of start, among all ops that say so: MPI and NCCL, by their communicator
  Op,   // by the order of start of owner_of_order() alone: cells in shared memory
  Any,  // by Batch::sequence
};

class CollectiveOp {
 public:
  virtual ~CollectiveOp() = default;
  // "shm_allreduce", "mpi_broadcast": what users type and see.
  virtual std::string_view name() const = 0;
  // Empty if this op can run such a batch, else the reason why not. Pure; the same on every rank.
  virtual std::string refusal(const BatchFacts& facts) const = 0;
  // For an op that takes captured batches: why it can't take one yet on this rank, and the cure, or
  // empty. Any thread.
  virtual std::string refusal_of_capture_now() const { return ""; }
  // Which Batch::piece_bytes are of use in batches like this one, whose memory is not looked at.
  // Pure; the same on every rank. Any thread.
  virtual PieceSizes piece_sizes(const Batch& /*like*/) const { return {}; }
  // For an op that the host drives. True: such a batch may be cut into several of one sequence,
  // each with a part of the elements (or of those of each block), and the results have the same
  // bits. Only Allreduce, Broadcast, Allgather and Reducescatter, and not with StartOrder::Any.
  // Pure; the same on every rank. Any thread.
  virtual bool same_in_parts(const Batch& /*like*/) const { return false; }
  // True: it takes batches with Batch::output_blocks, as well as others.
  virtual bool writes_blocks_apart() const { return false; }
  // True: on tensors of a device it works in host memory, into which they are packed
  // (MemoryDomain::ops_reach_tensors()). The other ops of that device may reach them.
  virtual bool works_in_host_copies() const { return false; }
  // False: the host does the work, while it steps; the memory is ready for it when start() is
  // called, and the result is in memory when step() says Done. True: start() and step() put the
  // work into Batch::queue, behind what is there and before what comes later; Done means that all
  // of it is there. On every rank such batches are started in the same order, and none waits for
  // the device in between.
  virtual bool enqueues() const { return false; }
  // For an op that enqueues. True: it is started only when this rank's tensors are ready, as an op
  // that the host drives. False: its queue waits for them, and so does all that comes behind it
  // there.
  virtual bool wants_ready_tensors() const { return false; }
  // For an op that enqueues: how much scratch of its own it may have; 0: none. Used for batches
  // that all ranks pack, so that either all ranks give the op this memory, or none.
  virtual size_t shared_scratch_max() const { return 0; }
  // Called when a batch that needs `bytes` of that scratch may start. Null: there is none for this
  // batch. All ranks get the same answer.
  virtual SharedScratch* shared_scratch(size_t /*bytes*/) { return nullptr; }
  virtual StartOrder start_order() const { return StartOrder::Log; }
  // With StartOrder::Op: the op whose starts are counted. An op that hands its batches to another
  // one returns that one.
  virtual const CollectiveOp& owner_of_order() const { return *this; }
  // Batches are started in the order of their sequence, as far as start_order() asks for it, on
  // every rank; several may be in flight.
  virtual std::unique_ptr<InFlight> start(Batch batch) = 0;
  // The job is over: nothing is stepped or started any more. An op that enqueues begins to stop
  // what still waits for peers in its queue, so that nothing behind it waits for ever; the results
  // are not valid. Returns at once.
  virtual void abort() noexcept {}
  // After abort() of all ops of all sets (one abort may need the others): waits until the work of
  // this op has stopped, or `limit` has passed.
  virtual void finish_abort(std::chrono::steady_clock::time_point /*limit*/) noexcept {}
};

}  // namespace horon::core
