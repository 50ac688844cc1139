// Adasum among ranks that are threads, against the formula calculated for whole vectors in double.
#include "horon/ops/adasum/adasum_allreduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "horon/ops/host/host_kernels.h"
#include "horon/ops/host/host_memory.h"
#include "horon/tests/support/adasum_order.h"
#include "horon/tests/support/thread_messages.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

using Vector = std::vector<double>;

Vector adasum(const Vector& a, const Vector& b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    sum[i] = (aa == 0 ? 1 : 1 - ab / (2 * aa)) * a[i] + (bb == 0 ? 1 : 1 - ab / (2 * bb)) * b[i];
  }
  return sum;
}

std::vector<std::byte> stored(DataType dtype, const Vector& numbers) {
  std::vector<std::byte> memory(numbers.size() * size_of(dtype));
  for (size_t i = 0; i < numbers.size(); ++i) {
    std::byte* const place = memory.data() + i * size_of(dtype);
    const auto single = static_cast<float>(numbers[i]);
    if (dtype == DataType::Float64) std::memcpy(place, &numbers[i], sizeof(double));
    if (dtype == DataType::Float32) std::memcpy(place, &single, sizeof(float));
    if (size_of(dtype) == 2) narrow(dtype, &single, place, 1, 1.0);
  }
  return memory;
}

Vector loaded(DataType dtype, const std::vector<std::byte>& memory) {
  Vector numbers(memory.size() / size_of(dtype));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::byte* const place = memory.data() + i * size_of(dtype);
    float single = 0;
    if (dtype == DataType::Float32) std::memcpy(&single, place, sizeof(float));
    if (size_of(dtype) == 2) widen(dtype, place, &single, 1, 1.0);
    numbers[i] = single;
    if (dtype == DataType::Float64) std::memcpy(&numbers[i], place, sizeof(double));
  }
  return numbers;
}

struct Case {
  DataType dtype = DataType::Float32;
  std::vector<int64_t> tensors;  // elements of each
  bool in_place = true;
  double prescale = 1;
  double postscale = 1;
  int64_t piece_bytes = Messages::kBytesMax;
};

using Input = std::function<Vector(int rank)>;

// The result on each rank, of several batches in flight: the input of batch k is multiplied by 2^k.
std::vector<std::vector<Vector>> run(const Case& tested, int ranks, int batches,
                                     const Input& input) {
  MessageHub hub;
  std::vector<std::vector<Vector>> results(static_cast<size_t>(ranks));
  core::run_ranks(ranks, [&](int rank) {
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(nullptr));
    const auto scratch = std::make_shared<core::ScratchPool>(std::move(domains));
    AdasumAllreduce op(std::make_shared<ThreadMessages>(hub, rank), scratch, rank, ranks,
                       tested.piece_bytes);
    std::vector<std::vector<std::byte>> inputs, outputs;
    std::vector<std::unique_ptr<core::InFlight>> flights;
    for (int k = 0; k < batches; ++k) {
      Vector numbers = input(rank);
      for (double& number : numbers) number = std::ldexp(number, k);
      inputs.push_back(stored(tested.dtype, numbers));
      outputs.emplace_back(inputs.back().size());
    }
    for (size_t k = 0; k < inputs.size(); ++k) {
      core::Batch batch;
      batch.sequence = k;
      batch.dtype = tested.dtype;
      batch.reduce_op = ReduceOp::Adasum;
      batch.prescale = tested.prescale;
      batch.postscale = tested.postscale;
      batch.count = static_cast<int64_t>(inputs[k].size() / size_of(tested.dtype));
      batch.tensor_counts = core::BlockCounts(tested.tensors);
      batch.input = inputs[k].data();
      batch.output = tested.in_place ? inputs[k].data() : outputs[k].data();
      flights.push_back(op.start(batch));
    }
    std::mt19937_64 random(static_cast<uint64_t>(rank) + 1);
    for (size_t left = flights.size(); left > 0;) {
      auto& flight = flights[random() % flights.size()];
      if (flight == nullptr || flight->step() != core::Progress::Done) continue;
      flight.reset();
      --left;
    }
    for (size_t k = 0; k < inputs.size(); ++k) {
      results[static_cast<size_t>(rank)].push_back(
          loaded(tested.dtype, tested.in_place ? inputs[k] : outputs[k]));
    }
  });
  EXPECT_TRUE(hub.empty());
  return results;
}

Vector part_of(const Vector& all, int64_t begin, int64_t count) {
  return {all.begin() + begin, all.begin() + begin + count};
}

double tolerance_of(DataType dtype) {
  if (dtype == DataType::Float64) return 1e-13;
  if (dtype == DataType::Float32) return 2e-6;
  return dtype == DataType::Float16 ? 4e-3 : 3e-2;
}

void check(const Case& tested, int ranks, int batches) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, " << to_string(tested.dtype) << ", "
                                  << tested.tensors.size() << " tensors");
  const int64_t count = std::accumulate(tested.tensors.begin(), tested.tensors.end(), int64_t{0});
  const auto input = [&](int rank) {  // multiples of 1/64, which every type holds
    std::mt19937_64 random(static_cast<uint64_t>(rank) * 77 + 5);
    Vector numbers(static_cast<size_t>(count));
    for (double& number : numbers) number = static_cast<double>(random() % 129) / 64 - 1;
    return numbers;
  };
  const auto results = run(tested, ranks, batches, input);
  for (int k = 0; k < batches; ++k) {
    const auto batch = static_cast<size_t>(k);
    for (const auto& of_rank : results) EXPECT_EQ(of_rank[batch], results.front()[batch]);
    int64_t begin = 0;
    for (const int64_t elements : tested.tensors) {
      std::vector<Vector> inputs;
      for (int rank = 0; rank < ranks; ++rank) {
        inputs.push_back(part_of(input(rank), begin, elements));
      }
      const Vector want = test::combined_as_by_adasum(inputs, adasum);
      const double scale = std::ldexp(tested.prescale * tested.postscale, k);
      for (int64_t i = 0; i < elements; ++i) {
        const double number = want[static_cast<size_t>(i)] * scale;
        ASSERT_NEAR(results[0][batch][static_cast<size_t>(begin + i)], number,
                    tolerance_of(tested.dtype) * scale * ranks)
            << "element " << i << " of the tensor at " << begin;
      }
      begin += elements;
    }
  }
}

TEST(Adasum, IsTheFormulaOnAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    check({.tensors = {1000}}, ranks, 2);
    check({.tensors = {3, 0, 1, 700, 2, 29}, .in_place = false}, ranks, 2);
    check({.tensors = {1}}, ranks, 1);  // less than there are ranks
  }
}

TEST(Adasum, EveryFloatingType) {
  for (const DataType dtype :
       {DataType::Float64, DataType::Float32, DataType::Float16, DataType::BFloat16}) {
    for (const int ranks : {2, 3, 4}) check({.dtype = dtype, .tensors = {2100, 33}}, ranks, 3);
  }
}

TEST(Adasum, MessagesHaveALimit) { check({.tensors = {5000, 77}, .piece_bytes = 1000}, 5, 3); }

TEST(Adasum, ScalesBeforeAndAfter) {
  check({.tensors = {100, 20}, .in_place = false, .prescale = 0.5, .postscale = 4}, 4, 1);
  check({.tensors = {100, 20}, .prescale = 4}, 3, 1);
}

// Tensors that take more than one step, and more batches than may be in flight.
TEST(Adasum, LongOnesGoOnStepByStep) {
  check({.tensors = {300'000, 5, 150'000}, .in_place = false}, 3, 2);
  check({.tensors = {40}}, 4, 12);
}

TEST(Adasum, OrthogonalVectorsAreAdded) {
  const auto results = run({.tensors = {8}}, 8, 1, [](int rank) {
    Vector axis(8);
    axis[static_cast<size_t>(rank)] = rank + 1;
    return axis;
  });
  EXPECT_EQ(results[3][0], Vector({1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(Adasum, EqualVectorsStayAsTheyAre) {
  const auto results = run({.tensors = {5}}, 6, 1, [](int) { return Vector{1, -2, 3, 0, 5}; });
  EXPECT_EQ(results[5][0], Vector({1, -2, 3, 0, 5}));
}

TEST(Adasum, TheMeanOfParallelVectors) {
  const auto results = run({.tensors = {2}}, 2, 1, [](int rank) {
    return Vector{1.0 + rank, 2.0 + 2 * rank};
  });
  EXPECT_EQ(results[0][0], Vector({1.5, 3}));
}

// Such zeros come from a rank that has joined.
TEST(Adasum, ZerosAreNeutral) {
  const auto results = run({.tensors = {2, 2}}, 3, 1, [](int rank) {
    return rank == 1 ? Vector{1, 2, 3, 4} : Vector(4);
  });
  EXPECT_EQ(results[2][0], Vector({1, 2, 3, 4}));
}

// The factor of the short one is beyond float32, though the result is not.
TEST(Adasum, AVectorThatIsMuchShorterThanTheOther) {
  const auto results = run({.tensors = {2}}, 2, 1, [](int rank) {
    return rank == 0 ? Vector{1e-40, 0} : Vector{1, 1};
  });
  EXPECT_EQ(results[0][0], Vector({0.5, 1}));
  const auto wide = run({.dtype = DataType::Float64, .tensors = {2}}, 2, 1, [](int rank) {
    return rank == 0 ? Vector{5e-160, 0} : Vector{1, 1};  // its square is no normal number
  });
  EXPECT_EQ(wide[0][0], Vector({1, 1}));
}

TEST(Adasum, LargeElementsOfOppositeSigns) {
  for (const DataType dtype : {DataType::Float32, DataType::BFloat16}) {
    const auto results = run({.dtype = dtype, .tensors = {2}}, 2, 1, [](int rank) {
      return rank == 0 ? Vector{0x1p127, 0} : Vector{-0x1p127, 1};
    });
    EXPECT_EQ(results[0][0], Vector({0, 1.5})) << "1.5 of each, and that is beyond float32";
  }
}

TEST(Adasum, ANanStaysInItsTensor) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto results = run({.tensors = {2, 2}}, 2, 1, [&](int rank) {
    return rank == 1 ? Vector{nan, 1, 1, 1} : Vector{1, 1, 1, 1};
  });
  EXPECT_TRUE(std::isnan(results[0][0][0]));
  EXPECT_EQ(part_of(results[0][0], 2, 2), Vector({1, 1}));
}

TEST(Adasum, GivesItsScratchBack) {
  MessageHub hub;
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(nullptr));
  const auto scratch = std::make_shared<core::ScratchPool>(std::move(domains));
  AdasumAllreduce op(std::make_shared<ThreadMessages>(hub, 0), scratch, 0, 1);
  std::vector<float> numbers(100, 1.0F);
  size_t of_first = 0;
  for (uint64_t sequence = 0; sequence < 5; ++sequence) {
    core::Batch batch;
    batch.sequence = sequence;
    batch.reduce_op = ReduceOp::Adasum;
    batch.count = 100;
    batch.tensor_counts = std::vector<int64_t>{100};
    batch.input = batch.output = reinterpret_cast<std::byte*>(numbers.data());
    const auto flight = op.start(batch);
    while (flight->step() != core::Progress::Done) {
    }
    if (sequence == 0) of_first = scratch->usage().bytes_peak;
  }
  EXPECT_GT(of_first, 0U);
  EXPECT_EQ(scratch->usage().bytes_peak, of_first);
}

TEST(Adasum, WhatItRefuses) {
  const AdasumAllreduce op(nullptr, nullptr, 0, 2);
  core::BatchFacts facts;
  EXPECT_EQ(op.refusal(facts), "it does Adasum only");
  facts.reduce_op = ReduceOp::Adasum;
  EXPECT_EQ(op.refusal(facts), "");
  facts.dtype = DataType::Int32;
  EXPECT_EQ(op.refusal(facts), why_no_reduction(DataType::Int32, ReduceOp::Adasum));
  facts.dtype = DataType::Float32;
  facts.device = DeviceKind::Cuda;
  EXPECT_EQ(op.refusal(facts), "it can't reach cuda memory");
  facts.device = DeviceKind::Host;
  facts.kind = CollectiveKind::Reducescatter;
  EXPECT_EQ(op.refusal(facts), "it does allreduce only");
}

}  // namespace
}  // namespace horon::ops
