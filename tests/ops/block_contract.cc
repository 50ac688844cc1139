// The contract of the collectives that give each rank a block of its own: reducescatter, alltoall,
// gather, scatter.

#include <algorithm>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "horon/ops/host/host_kernels.h"
#include "horon/tests/ops/contract_case.h"
#include "horon/tests/ops/op_contract.h"

namespace horon::ops {
namespace {

// How many elements go from one rank to another; some are none.
int64_t block_length(uint64_t sequence, int from, int to, int64_t longest) {
  const uint64_t bits = mix(sequence, static_cast<uint64_t>(from), static_cast<uint64_t>(to));
  if (bits % 4 == 0) return 0;
  return static_cast<int64_t>((bits >> 8) % static_cast<uint64_t>(longest + 1));
}

std::vector<std::byte> bytes_between(uint64_t sequence, int from, int to, int64_t bytes) {
  return random_bytes(sequence, static_cast<uint64_t>(from * 64 + to), bytes);
}

struct ExchangeRun {
  std::vector<std::byte> content;  // of the input
  std::vector<std::byte> expected;
  std::unique_ptr<ContractBuffer> input;
  std::unique_ptr<ContractBuffer> output;
  std::unique_ptr<ContractBlocks> blocks;  // in place of it
  core::Batch batch;

  // Any mixture of memory that others can reach and memory that they can't, and of outputs in one
  // stretch and in several.
  void allocate(const World& world, const core::CollectiveOp& op) {
    const uint64_t bits = mix(batch.sequence, static_cast<uint64_t>(world.rank), 77);
    input = std::make_unique<ContractBuffer>(world, content, bits % 2 == 0);
    batch.input = input->data();
    batch.queue = world.queue;
    const bool registered = bits / 2 % 2 == 0;
    const std::vector<std::byte> before(expected.size());
    if (op.writes_blocks_apart() && !batch.receive_counts.empty() && bits / 4 % 2 == 0) {
      blocks = std::make_unique<ContractBlocks>(world, before, batch.dtype, batch.receive_counts,
                                                registered);
      batch.output_blocks = blocks->places();
    } else {
      output = std::make_unique<ContractBuffer>(world, before, registered);
      batch.output = output->data();
    }
  }
  bool is_right() const {
    return blocks != nullptr ? blocks->hold(expected) : output->holds(expected);
  }
};

void prepare_exchange(const World& world, const core::CollectiveOp& op, ExchangeRun& run,
                      uint64_t sequence, DataType dtype, CollectiveKind kind, int64_t longest) {
  const auto size = static_cast<int64_t>(size_of(dtype));
  const auto root = static_cast<int>(sequence % static_cast<uint64_t>(world.size));
  const auto length = [&](int from, int to) {
    if (kind == CollectiveKind::Gather && to != root) return int64_t{0};
    if (kind == CollectiveKind::Scatter && from != root) return int64_t{0};
    return block_length(sequence, from, to, longest);
  };
  std::vector<int64_t> send_counts;
  std::vector<int64_t> receive_counts;
  for (int other = 0; other < world.size; ++other) {
    const int64_t out = length(world.rank, other);
    const int64_t in = length(other, world.rank);
    send_counts.push_back(out);
    receive_counts.push_back(in);
    const auto sent = bytes_between(sequence, world.rank, other, out * size);
    const auto received = bytes_between(sequence, other, world.rank, in * size);
    run.content.insert(run.content.end(), sent.begin(), sent.end());
    run.expected.insert(run.expected.end(), received.begin(), received.end());
  }
  run.batch.kind = kind;
  run.batch.sequence = sequence;
  run.batch.dtype = dtype;
  run.batch.root = root;
  run.batch.send_counts = std::move(send_counts);
  run.batch.receive_counts = std::move(receive_counts);
  run.batch.count = static_cast<int64_t>(run.content.size()) / size;
  run.allocate(world, op);
}

// The numbers of a rank's input from element `begin` on. So small that sums and products are exact
// in every type.
std::vector<std::byte> numbers_of(DataType dtype, uint64_t sequence, int rank, int64_t begin,
                                  int64_t count) {
  return random_numbers({0, 3}, dtype, sequence, rank, begin, count);
}

// This rank's block, which begins at element `begin`, of all ranks' inputs reduced, by the kernels
// that have tests of their own.
std::vector<std::byte> reduced(const core::Batch& batch, int ranks, int64_t begin) {
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> places;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(numbers_of(batch.dtype, batch.sequence, rank, begin, batch.count));
    places.push_back(inputs.back().data());
  }
  std::vector<std::byte> result(static_cast<size_t>(batch.count) * size_of(batch.dtype));
  std::byte* output = result.data();
  reduce_many({batch.dtype, batch.reduce_op, batch.prescale, batch.postscale, batch.divisor},
              places, {&output, 1}, batch.count);
  return result;
}

// `lengths`: elements that each rank gets.
void prepare_reduction(const World& world, const core::CollectiveOp& op, ExchangeRun& run,
                       uint64_t sequence, DataType dtype, ReduceOp reduce_op,
                       std::vector<int64_t> lengths) {
  core::Batch& batch = run.batch;
  batch.kind = CollectiveKind::Reducescatter;
  batch.sequence = sequence;
  batch.dtype = dtype;
  batch.reduce_op = reduce_op;
  if (reduce_op == ReduceOp::Average) batch.divisor = world.size;
  if (is_floating(dtype) && sequence % 3 == 0) batch.prescale = 2.0;
  if (is_floating(dtype) && sequence % 3 == 1) batch.postscale = 0.5;
  const auto own = lengths.begin() + world.rank;
  const int64_t own_begin = std::accumulate(lengths.begin(), own, int64_t{0});
  const int64_t total = std::accumulate(own, lengths.end(), own_begin);
  batch.send_counts = std::move(lengths);
  batch.count = batch.send_counts[static_cast<size_t>(world.rank)];
  run.content = numbers_of(dtype, sequence, world.rank, 0, total);
  run.expected = reduced(batch, world.size, own_begin);
  run.allocate(world, op);
}

// The reductions that the op has.
std::vector<ReduceOp> reductions_of(const World& world, DataType dtype) {
  std::vector<ReduceOp> all;
  for (const ReduceOp reduce_op : kAllReduceOps) {
    const bool refused = world.refuses && world.refuses(dtype, reduce_op);
    if (exists(dtype, reduce_op) && !refused) all.push_back(reduce_op);
  }
  return all;
}

using Runs = std::vector<std::unique_ptr<ExchangeRun>>;

void run_all(const World& world, core::CollectiveOp& op, const Runs& runs, DataType dtype,
             std::mt19937_64& random) {
  std::vector<std::unique_ptr<core::InFlight>> in_flight;
  for (const auto& run : runs) in_flight.push_back(op.start(run->batch));
  drive(world, std::move(in_flight), random);
  for (const auto& run : runs) {
    ASSERT_TRUE(run->is_right()) << to_string(dtype) << ' ' << run->batch.sequence;
    EXPECT_TRUE(run->input->holds(run->content)) << "the input was changed";
  }
}

}  // namespace

void check_exchange(const World& world, core::CollectiveOp& op, CollectiveKind kind) {
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 51);
  uint64_t sequence = 0;
  for (const DataType dtype : contract_types()) {
    Runs runs;
    for (const int64_t longest : {0, 1, 7, 3001, 100001}) {
      for (int root = 0; root < world.size; ++root) {
        auto& run = *runs.emplace_back(std::make_unique<ExchangeRun>());
        prepare_exchange(world, op, run, ++sequence, dtype, kind, longest);
      }
    }
    run_all(world, op, runs, dtype, random);
  }
}

void check_reducescatter(const World& world, core::CollectiveOp& op) {
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 61);
  uint64_t sequence = 0;
  for (const DataType dtype : contract_types()) {
    Runs runs;
    for (const ReduceOp reduce_op : reductions_of(world, dtype)) {
      for (const int64_t longest : {0, 1, 7, 3001, 100001, 700001}) {
        // The longest takes more than one step of an op; once is enough of so much memory.
        if (longest == 700001 && (dtype != DataType::Float32 || reduce_op != ReduceOp::Sum)) {
          continue;
        }
        std::vector<int64_t> lengths;
        ++sequence;
        for (int rank = 0; rank < world.size; ++rank) {
          lengths.push_back(block_length(sequence, rank, 0, longest));
        }
        auto& run = *runs.emplace_back(std::make_unique<ExchangeRun>());
        prepare_reduction(world, op, run, sequence, dtype, reduce_op, std::move(lengths));
      }
    }
    run_all(world, op, runs, dtype, random);
  }
}

void check_reduction_to_one(const World& world, core::CollectiveOp& op) {
  constexpr int64_t long_enough = 300'001;  // bytes, that it pays to think of who gets them
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 71);
  uint64_t sequence = 0;
  for (const DataType dtype : contract_types()) {
    Runs runs;
    for (const ReduceOp reduce_op : reductions_of(world, dtype)) {
      ++sequence;
      std::vector<int64_t> lengths(static_cast<size_t>(world.size));
      lengths.back() = 5;
      lengths[sequence % lengths.size()] = long_enough / static_cast<int64_t>(size_of(dtype)) + 1;
      auto& run = *runs.emplace_back(std::make_unique<ExchangeRun>());
      prepare_reduction(world, op, run, sequence, dtype, reduce_op, std::move(lengths));
    }
    run_all(world, op, runs, dtype, random);
  }
}

}  // namespace horon::ops
