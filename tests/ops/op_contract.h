// What every collective op must do, written once. A test makes a World for each rank, whatever a
// rank is there (a process, a thread), and calls these functions with its op; see mpi_ops_test.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/memory_queue.h"
#include "horon/core/host/doorbell.h"

namespace horon::ops {

// One rank's place among the others.
struct World {
  int rank = 0;
  int size = 1;
  // One number from every rank, in order of rank; blocks.
  std::function<std::vector<uint64_t>(uint64_t mine)> gather;
  // Memory that the ops of this world can use best; may be empty.
  std::function<std::shared_ptr<std::byte>(size_t bytes)> allocate;
  // What ops that return Progress::Ringing ring; null if none does.
  core::Doorbell* doorbell = nullptr;
  // What the batches are enqueued in; null for ops that do not enqueue.
  core::MemoryQueue* queue = nullptr;
  // What the ops can't reduce; null: nothing.
  std::function<bool(DataType, ReduceOp)> refuses;
};

// Steps all of them in random order until all are done and their results are in memory, waiting as
// the ops say. Fails the test if nobody rings a rank that waits.
void drive(const World& world, std::vector<std::unique_ptr<core::InFlight>> in_flight,
           std::mt19937_64& random);

// Every type, reduction, length, place and kind of memory, several at a time; results are exact.
void check_allreduce(const World& world, core::CollectiveOp& op);
// Long ones, for ops that cut their work in pieces. Exact too.
void check_long_allreduce(const World& world, core::CollectiveOp& op, int64_t count);
// In pieces of all kinds of lengths that are asked for, some of which no op can do: exact, and the
// bits of what the op does by itself. `count`: elements of the longest.
void check_pieces(const World& world, core::CollectiveOp& op, int64_t count);
// Random numbers: all ranks get the same bits, and the same again in a second run.
void check_same_bits(const World& world, core::CollectiveOp& op);
// NaN wins in Min and Max, wherever it is.
void check_nan(const World& world, core::CollectiveOp& op);
// Prescale, postscale and divisor.
void check_scales(const World& world, core::CollectiveOp& op);
// Many more in flight than any op has room for, and ranks that come late.
void check_many_in_flight(const World& world, core::CollectiveOp& op, int rounds);
// In place on some ranks and not on others.
void check_mixed_places(const World& world, core::CollectiveOp& op);
// Only one rank wants the result. `writes_unwanted`: false if the op is to leave the others' alone.
void check_unwanted_outputs(const World& world, core::CollectiveOp& op,
                            bool writes_unwanted = true);
void check_allreduce_refusals(const core::CollectiveOp& op);

void check_broadcast(const World& world, core::CollectiveOp& op);
void check_allgather(const World& world, core::CollectiveOp& op);
// Every type, reduction and length, even and uneven blocks; exact.
void check_reducescatter(const World& world, core::CollectiveOp& op);
// The same where one rank gets nearly all.
void check_reduction_to_one(const World& world, core::CollectiveOp& op);
// Alltoall, Gather or Scatter: blocks of every length, some empty.
void check_exchange(const World& world, core::CollectiveOp& op, CollectiveKind kind);

}  // namespace horon::ops
