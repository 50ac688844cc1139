// The contract of the collectives that only move data: broadcast, allgather.

#include <algorithm>

#include <gtest/gtest.h>

#include "horon/tests/ops/contract_case.h"
#include "horon/tests/ops/op_contract.h"

namespace horon::ops {
namespace {

std::vector<std::byte> block_of(uint64_t sequence, int rank, int64_t bytes) {
  return random_bytes(sequence, static_cast<uint64_t>(rank), bytes);
}

struct MoveRun {
  std::unique_ptr<ContractBuffer> input;  // null: in place
  std::unique_ptr<ContractBuffer> output;
  std::unique_ptr<ContractBlocks> blocks;  // in place of it
  std::vector<std::byte> content;          // of the input
  std::vector<std::byte> expected;
  core::Batch batch;
};

using MoveRuns = std::vector<std::unique_ptr<MoveRun>>;

// Any mixture of memory that others can reach and memory that they can't.
bool is_registered(const World& world, uint64_t sequence, uint64_t which) {
  return mix(sequence, static_cast<uint64_t>(world.rank), which) % 2 == 0;
}

void run_moves(const World& world, core::CollectiveOp& op, const MoveRuns& runs, DataType dtype,
               std::mt19937_64& random) {
  std::vector<std::unique_ptr<core::InFlight>> in_flight;
  for (const auto& run : runs) {
    run->batch.queue = world.queue;
    in_flight.push_back(op.start(run->batch));
  }
  drive(world, std::move(in_flight), random);
  for (const auto& run : runs) {
    ASSERT_TRUE(run->blocks != nullptr ? run->blocks->hold(run->expected)
                                       : run->output->holds(run->expected))
        << to_string(dtype) << ' ' << run->batch.sequence;
    if (run->input == nullptr) continue;
    EXPECT_TRUE(run->input->holds(run->content))
        << "the input was changed: " << to_string(dtype) << ' ' << run->batch.sequence;
  }
}

// The output in one block of memory, or in several if the op can write there.
void prepare_allgather(const World& world, const core::CollectiveOp& op, MoveRun& run,
                       uint64_t sequence, DataType dtype, const std::vector<int64_t>& counts,
                       bool in_place) {
  const auto size = static_cast<int64_t>(size_of(dtype));
  size_t own_begin = 0;
  std::vector<std::byte> own;
  for (int rank = 0; rank < world.size; ++rank) {
    const auto block = block_of(sequence, rank, counts[static_cast<size_t>(rank)] * size);
    if (rank == world.rank) {
      own_begin = run.expected.size();
      own = block;
    }
    run.expected.insert(run.expected.end(), block.begin(), block.end());
  }
  std::vector<std::byte> before(run.expected.size());
  if (in_place) std::copy(own.begin(), own.end(), before.begin() + static_cast<int64_t>(own_begin));
  std::byte* own_place = nullptr;
  const bool registered = is_registered(world, sequence, 1);
  const auto me = static_cast<size_t>(world.rank);
  if (op.writes_blocks_apart() && mix(sequence, me, 3) % 2 == 0) {
    run.blocks = std::make_unique<ContractBlocks>(world, before, dtype, counts, registered);
    run.batch.output_blocks = run.blocks->places();
    own_place = run.batch.output_blocks[me];
  } else {
    run.output = std::make_unique<ContractBuffer>(world, before, registered);
    run.batch.output = run.output->data();
    own_place = run.batch.output + own_begin;
  }
  if (!in_place) {
    run.content = own;
    run.input = std::make_unique<ContractBuffer>(world, own, is_registered(world, sequence, 2));
  }
  run.batch.kind = CollectiveKind::Allgather;
  run.batch.sequence = sequence;
  run.batch.dtype = dtype;
  run.batch.receive_counts = counts;
  run.batch.count = counts[me];
  run.batch.input = in_place ? own_place : run.input->data();
}

void prepare_broadcast(const World& world, MoveRun& run, uint64_t sequence, DataType dtype,
                       int64_t count, bool in_place) {
  const auto root = static_cast<int>(sequence % static_cast<uint64_t>(world.size));
  const int64_t bytes = count * static_cast<int64_t>(size_of(dtype));
  run.expected = block_of(sequence, root, bytes);
  const std::vector<std::byte> own = block_of(sequence, world.rank, bytes);
  const auto before = in_place ? own : block_of(sequence + 1, world.rank, bytes);
  run.output = std::make_unique<ContractBuffer>(world, before, is_registered(world, sequence, 1));
  if (!in_place) {
    run.content = own;
    run.input = std::make_unique<ContractBuffer>(world, own, is_registered(world, sequence, 2));
  }
  run.batch.kind = CollectiveKind::Broadcast;
  run.batch.sequence = sequence;
  run.batch.dtype = dtype;
  run.batch.root = root;
  run.batch.count = count;
  run.batch.output = run.output->data();
  run.batch.input = in_place ? run.output->data() : run.input->data();
}

}  // namespace

void check_broadcast(const World& world, core::CollectiveOp& op) {
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 21);
  uint64_t sequence = 0;
  for (const DataType dtype : contract_types()) {
    MoveRuns runs;
    for (const int64_t count : {0, 1, 3, 1000, 65537, 700001}) {
      // The longest takes more than one step of an op; once is enough of so much memory.
      if (count == 700001 && dtype != DataType::Float32) continue;
      for (const bool in_place : {true, false}) {
        auto& run = *runs.emplace_back(std::make_unique<MoveRun>());
        prepare_broadcast(world, run, ++sequence, dtype, count, in_place);
      }
    }
    run_moves(world, op, runs, dtype, random);
  }
}

void check_allgather(const World& world, core::CollectiveOp& op) {
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 31);
  uint64_t sequence = 0;
  for (const DataType dtype : contract_types()) {
    MoveRuns runs;
    for (const int64_t longest : {0, 1, 7, 3001, 300001}) {
      for (const bool in_place : {true, false}) {
        ++sequence;
        std::vector<int64_t> counts;
        for (int rank = 0; rank < world.size; ++rank) {
          const uint64_t bits = mix(sequence, static_cast<uint64_t>(rank), 0);
          counts.push_back(bits % 4 == 0 ? 0 : static_cast<int64_t>(bits >> 8) % (longest + 1));
          counts.back() = std::abs(counts.back());
        }
        auto& run = *runs.emplace_back(std::make_unique<MoveRun>());
        prepare_allgather(world, op, run, sequence, dtype, counts, in_place);
      }
    }
    run_moves(world, op, runs, dtype, random);
  }
}

}  // namespace horon::ops
