// What every collective op must do, written once. A test makes a World for each rank, be it a
// process or a thread, and calls these functions with its op; see mpi_ops_test.cc.
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
  // Gathers one number from every rank, in order of rank; blocks.
  std::function<std::vector<uint64_t>(uint64_t mine)> gather;
  // Memory that the ops of this world can use best; may be empty.
  std::function<std::shared_ptr<std::byte>(size_t bytes)> allocate;
  // What ops that return Progress::Ringing ring; null if none does.
  core::Doorbell* doorbell = nullptr;
  // What the batches are enqueued in; null for ops that do not enqueue.
  core::MemoryQueue* queue = nullptr;
  // Whether the ops can't reduce this; null: they can reduce all.
  std::function<bool(DataType, ReduceOp)> refuses;
};

// Steps all of them in random order, waiting as the ops say, until all are done and their results
// are in memory. Fails the test if no rank rings one that waits.
void drive(const World& world, std::vector<std::unique_ptr<core::InFlight>> in_flight,
           std::mt19937_64& random);

// Every type, reduction, length, place and kind of memory, several at a time; results are exact.
void check_allreduce(const World& world, core::CollectiveOp& op);
// Long allreduces, for ops that cut their work in pieces. The results are exact, too.
void check_long_allreduce(const World& world, core::CollectiveOp& op, int64_t count);
// Asks for pieces of many lengths, some of which no op can do. The results are exact, and have the
// bits of those without a length. `count`: elements of the longest tensor.
void check_pieces(const World& world, core::CollectiveOp& op, int64_t count);
// Random numbers: all ranks get the same bits, and the same again in a second run.
void check_same_bits(const World& world, core::CollectiveOp& op);
// NaN wins in Min and Max, wherever it is.
void check_nan(const World& world, core::CollectiveOp& op);
// Prescale, postscale and divisor.
void check_scales(const World& world, core::CollectiveOp& op);
// Many more collectives in flight than any op has room for, and ranks that come late.
void check_many_in_flight(const World& world, core::CollectiveOp& op, int rounds);
// Tensors that are in place on some ranks and not on others.
void check_mixed_places(const World& world, core::CollectiveOp& op);
// Only one rank wants the result. `writes_unwanted`: false if the op must not write the outputs of
// the other ranks.
void check_unwanted_outputs(const World& world, core::CollectiveOp& op,
                            bool writes_unwanted = true);
void check_allreduce_refusals(const core::CollectiveOp& op);

void check_broadcast(const World& world, core::CollectiveOp& op);
void check_allgather(const World& world, core::CollectiveOp& op);
// Every type, reduction and length, even and uneven blocks; exact.
void check_reducescatter(const World& world, core::CollectiveOp& op);
// The same if one rank gets nearly all elements.
void check_reduction_to_one(const World& world, core::CollectiveOp& op);
// Alltoall, Gather or Scatter: blocks of every length, some empty.
void check_exchange(const World& world, core::CollectiveOp& op, CollectiveKind kind);

}  // namespace horon::ops
