#include "horon/tests/ops/op_contract.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "horon/tests/ops/contract_case.h"
#include "horon/tests/support/long_enough.h"

namespace horon::ops {
namespace {

using core::Progress;

constexpr int64_t kLengths[] = {0, 1, 2, 3, 1000};

// Ranks come at different times; now and then one sleeps.
void maybe_late(std::mt19937_64& random) {
  if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
}

// Seeded alike on all ranks, so that all make the same cases.
std::vector<AllreduceCase> all_cases(const World& world) {
  std::vector<AllreduceCase> cases;
  for (const DataType dtype : contract_types()) {
    for (const ReduceOp op : kAllReduceOps) {
      if (!exists(dtype, op) || (world.refuses && world.refuses(dtype, op))) continue;
      for (const int64_t count : kLengths) {
        for (int variant = 0; variant < 4; ++variant) {
          cases.push_back({.dtype = dtype,
                           .op = op,
                           .count = count,
                           .in_place = variant % 2 == 0,
                           .registered = variant / 2 == 0});
        }
      }
      const auto variant = cases.size() / 20;
      cases.push_back({.dtype = dtype,
                       .op = op,
                       .count = 65537,
                       .in_place = variant % 2 == 0,
                       .registered = variant % 4 < 2});
    }
  }
  return cases;
}

void run_cases(const World& world, core::CollectiveOp& op, std::vector<AllreduceCase> cases,
               size_t at_once) {
  std::mt19937_64 order(7);  // the same on all ranks
  std::shuffle(cases.begin(), cases.end(), order);
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 1);
  uint64_t sequence = 0;
  for (size_t begin = 0; begin < cases.size(); begin += at_once) {
    std::vector<std::unique_ptr<AllreduceRun>> runs;
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    for (size_t i = begin; i < std::min(begin + at_once, cases.size()); ++i) {
      runs.push_back(std::make_unique<AllreduceRun>(world, cases[i], sequence++));
      maybe_late(random);
      in_flight.push_back(op.start(runs.back()->batch()));
    }
    drive(world, std::move(in_flight), random);
    for (const auto& run : runs) run->check();
    if (testing::Test::HasFailure()) return;
  }
}

// An op that is asked for pieces of these lengths, batch by batch.
class InPieces final : public core::CollectiveOp {
 public:
  InPieces(core::CollectiveOp& op, std::vector<int64_t> piece_bytes)
      : op_(op), piece_bytes_(std::move(piece_bytes)) {}
  std::string_view name() const override { return op_.name(); }
  std::string refusal(const core::BatchFacts& facts) const override { return op_.refusal(facts); }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override {
    batch.piece_bytes = piece_bytes_.at(batch.sequence % piece_bytes_.size());
    return op_.start(std::move(batch));
  }

 private:
  core::CollectiveOp& op_;
  const std::vector<int64_t> piece_bytes_;
};

// Cases of random floats; the same input for the same type and count.
struct FloatCase {
  DataType dtype;
  int64_t count;
  bool registered;
};

uint64_t hash_of_result(const World& world, core::CollectiveOp& op, const FloatCase& tested) {
  AllreduceRun reduce(
      world, {.dtype = tested.dtype, .count = tested.count, .registered = tested.registered}, 0);
  reduce.fill_random_floats();
  std::vector<std::unique_ptr<core::InFlight>> in_flight;
  in_flight.push_back(op.start(reduce.batch()));
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 5);
  drive(world, std::move(in_flight), random);
  return reduce.output_hash();
}

}  // namespace

void drive(const World& world, std::vector<std::unique_ptr<core::InFlight>> in_flight,
           std::mt19937_64& random) {
  while (!in_flight.empty()) {
    std::shuffle(in_flight.begin(), in_flight.end(), random);
    bool advanced = false;
    bool polling = false;
    for (auto& flight : in_flight) {
      const Progress progress = flight->step();
      advanced = advanced || progress == Progress::Advanced || progress == Progress::Done;
      polling = polling || progress == Progress::Polling || progress == Progress::Driving;
      if (progress == Progress::Done) flight.reset();
    }
    std::erase(in_flight, nullptr);
    if (advanced || in_flight.empty()) continue;
    if (polling) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_NE(world.doorbell, nullptr) << "this op may not say that it will be rung";
    ASSERT_TRUE(world.doorbell->wait(kLongEnough, {}))
        << "rank " << world.rank << " waits and nobody rings";
  }
  if (world.queue != nullptr) world.queue->record()->wait();
}

void check_allreduce(const World& world, core::CollectiveOp& op) {
  run_cases(world, op, all_cases(world), 13);
}

void check_long_allreduce(const World& world, core::CollectiveOp& op, int64_t count) {
  std::vector<AllreduceCase> cases;
  const std::pair<DataType, ReduceOp> kinds[] = {{DataType::Float32, ReduceOp::Sum},
                                                 {DataType::BFloat16, ReduceOp::Average},
                                                 {DataType::Int64, ReduceOp::Max}};
  for (const auto& [dtype, reduce_op] : kinds) {
    for (int variant = 0; variant < 4; ++variant) {
      // The expected result costs more than the allreduce: the whole length once for each kind of
      // memory is enough, the others take a few pieces.
      const bool whole = dtype == DataType::Float32 && (variant == 0 || variant == 3);
      cases.push_back({.dtype = dtype,
                       .op = reduce_op,
                       .count = whole ? count : count / 5,
                       .in_place = variant % 2 == 0,
                       .registered = variant / 2 == 0});
    }
  }
  // One rank's memory is not like the others'.
  cases.push_back({.count = count / 2, .private_rank = world.size - 1});
  cases.push_back({.count = count, .in_place = false, .private_rank = 0});
  run_cases(world, op, cases, 5);
}

void check_pieces(const World& world, core::CollectiveOp& op, int64_t count) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> lengths = {1, 4097, 30'000, (64 << 10) + 4, 333'333, 1 << 20, most};
  bool registered = false;
  for (const int64_t piece_bytes : lengths) {
    SCOPED_TRACE(testing::Message() << "pieces of " << piece_bytes);
    InPieces in_pieces(op, {piece_bytes});
    registered = !registered;
    for (const DataType dtype : {DataType::Float32, DataType::Float16}) {
      for (const int64_t odd : {int64_t{1}, int64_t{8193}, piece_bytes / 4 + 1, count}) {
        if (odd > count) continue;
        EXPECT_EQ(hash_of_result(world, in_pieces, {dtype, odd, registered}),
                  hash_of_result(world, op, {dtype, odd, registered}))
            << odd << " elements of " << to_string(dtype);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
  InPieces mixed(op, lengths);  // several of them in flight
  check_long_allreduce(world, mixed, count);
  check_many_in_flight(world, mixed, 6);
}

void check_mixed_places(const World& world, core::CollectiveOp& op) {
  for (const int64_t count : {int64_t{3}, int64_t{40000}, int64_t{200001}}) {
    std::vector<AllreduceCase> cases;
    for (const int alone : {0, world.size - 1}) {
      for (const DataType dtype : {DataType::Float32, DataType::BFloat16, DataType::Int32}) {
        cases.push_back(
            {.dtype = dtype, .count = count, .in_place = (world.rank == alone) == (alone == 0)});
      }
    }
    run_cases(world, op, cases, 7);
  }
}

void check_unwanted_outputs(const World& world, core::CollectiveOp& op, bool writes_unwanted) {
  for (const int64_t count : {int64_t{3}, int64_t{40000}, int64_t{200001}}) {
    std::vector<AllreduceCase> cases;
    for (const int wanted_by : {0, world.size - 1}) {
      for (const int private_rank : {-1, 0, world.size - 1}) {
        for (const bool registered : {true, false}) {
          cases.push_back({.dtype = DataType::Float32,
                           .op = ReduceOp::Average,
                           .count = count,
                           .in_place = world.rank == wanted_by,
                           .registered = registered,
                           .private_rank = private_rank,
                           .wanted_by = wanted_by,
                           .writes_unwanted = writes_unwanted});
        }
      }
    }
    run_cases(world, op, cases, 7);
  }
}

void check_same_bits(const World& world, core::CollectiveOp& op) {
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 11);
  for (const DataType dtype : {DataType::Float32, DataType::Float64, DataType::Float16}) {
    for (const int64_t count : {5, 777, 100003}) {
      uint64_t first_hash = 0;
      for (int run = 0; run < 2; ++run) {
        AllreduceRun reduce(world, {.dtype = dtype, .count = count}, 0);
        reduce.fill_random_floats();
        maybe_late(random);
        std::vector<std::unique_ptr<core::InFlight>> in_flight;
        in_flight.push_back(op.start(reduce.batch()));
        drive(world, std::move(in_flight), random);
        for (const uint64_t hash : world.gather(reduce.output_hash())) {
          EXPECT_EQ(hash, reduce.output_hash()) << "ranks differ";
        }
        if (run == 0) first_hash = reduce.output_hash();
        EXPECT_EQ(reduce.output_hash(), first_hash) << "runs differ";
      }
    }
  }
}

void check_nan(const World& world, core::CollectiveOp& op) {
  std::mt19937_64 random(1);
  for (const DataType dtype :
       {DataType::Float32, DataType::Float64, DataType::Float16, DataType::BFloat16}) {
    for (const ReduceOp reduce_op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum}) {
      for (int owner = 0; owner < world.size; ++owner) {
        AllreduceRun run(world, {.dtype = dtype, .op = reduce_op, .count = 9000}, 0);
        if (world.rank == owner) run.set_nan(4711);
        std::vector<std::unique_ptr<core::InFlight>> in_flight;
        in_flight.push_back(op.start(run.batch()));
        drive(world, std::move(in_flight), random);
        EXPECT_TRUE(run.is_nan(4711));
        EXPECT_FALSE(run.is_nan(4710));
        EXPECT_FALSE(run.is_nan(4712));
      }
    }
  }
}

void check_scales(const World& world, core::CollectiveOp& op) {
  std::vector<AllreduceCase> cases;
  for (const DataType dtype :
       {DataType::Float32, DataType::Float64, DataType::Float16, DataType::BFloat16}) {
    for (const ReduceOp reduce_op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
      for (const double prescale : {1.0, 0.5, 3.0}) {
        for (const double postscale : {1.0, 0.25, 0.1}) {
          for (const bool in_place : {true, false}) {
            cases.push_back({.dtype = dtype,
                             .op = reduce_op,
                             .count = 501,
                             .in_place = in_place,
                             .prescale = prescale,
                             .postscale = postscale});
          }
        }
      }
    }
  }
  run_cases(world, op, cases, 4);
}

void check_many_in_flight(const World& world, core::CollectiveOp& op, int rounds) {
  std::vector<AllreduceCase> cases;
  for (int round = 0; round < rounds; ++round) {
    for (const int64_t count : {1, 12, 100, 2048, 5000, 40000}) {
      cases.push_back({.count = count, .registered = round % 3 != 0});
    }
  }
  run_cases(world, op, cases, 60);
}

void check_allreduce_refusals(const core::CollectiveOp& op) {
  core::BatchFacts facts;
  EXPECT_EQ(op.refusal(facts), "");
  facts.kind = CollectiveKind::Broadcast;
  EXPECT_NE(op.refusal(facts), "");
  facts.kind = CollectiveKind::Allreduce;
  facts.device = DeviceKind::Cuda;
  EXPECT_NE(op.refusal(facts), "");
  facts.device = DeviceKind::Host;
  facts.dtype = DataType::Bool;
  EXPECT_EQ(op.refusal(facts), "");
  facts.reduce_op = ReduceOp::Average;
  EXPECT_NE(op.refusal(facts), "");
  facts.reduce_op = ReduceOp::BitXor;
  EXPECT_EQ(op.refusal(facts), "");
  facts.dtype = DataType::BFloat16;
  EXPECT_NE(op.refusal(facts), "");
}

}  // namespace horon::ops
