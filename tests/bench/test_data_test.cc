#include "horon/bench/test_data.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "horon/ops/host/host_kernels.h"

namespace horon::bench {
namespace {

TEST(PeriodicData, WritesWhatItExpects) {
  const PeriodicData data = TestData(DataType::Float32, ReduceOp::Sum, 2).of_rank(1);
  for (const int64_t count : {int64_t{0}, int64_t{1}, PeriodicData::kPeriod - 1,
                              PeriodicData::kPeriod, 3 * PeriodicData::kPeriod + 5}) {
    std::vector<std::byte> buffer(static_cast<size_t>(count) * 4);
    data.write(buffer.data(), count, PeriodicData::kPeriod - 2);
    EXPECT_EQ(data.count_wrong(buffer.data(), count, PeriodicData::kPeriod - 2), 0);
  }
}

TEST(PeriodicData, CountsWhatIsWrong) {
  constexpr int64_t count = 2 * PeriodicData::kPeriod + 77;
  const PeriodicData data = TestData(DataType::Int32, ReduceOp::Sum, 2).of_rank(0);
  std::vector<int32_t> buffer(count);
  auto* const bytes = reinterpret_cast<std::byte*>(buffer.data());
  data.write(bytes, count, 3);
  buffer.front() += 1;
  buffer[PeriodicData::kPeriod] -= 1;
  buffer.back() += 1000;
  EXPECT_EQ(data.count_wrong(bytes, count, 3), 3);
  // Data of the repetition before are wrong nearly everywhere.
  data.write(bytes, count, 2);
  EXPECT_GT(data.count_wrong(bytes, count, 3), count * 9 / 10);
}

TEST(PeriodicData, NanIsWrong) {
  const PeriodicData data = TestData(DataType::Float32, ReduceOp::Average, 3).reduced();
  std::vector<float> buffer(10);
  auto* const bytes = reinterpret_cast<std::byte*>(buffer.data());
  data.write(bytes, 10, 0);
  EXPECT_EQ(data.count_wrong(bytes, 10, 0), 0);
  buffer[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(data.count_wrong(bytes, 10, 0), 1);
}

TEST(TestData, IsExactInTheTypeInWhichItTravels) {
  for (const DataType carried : {DataType::BFloat16, DataType::Float16}) {
    const TestData data(DataType::Float32, ReduceOp::Sum, 3, carried);
    std::vector<PeriodicData> all{data.reduced()};
    for (int rank = 0; rank < 3; ++rank) all.push_back(data.of_rank(rank));
    for (const PeriodicData& each : all) {
      std::vector<float> values(PeriodicData::kPeriod);
      auto* const bytes = reinterpret_cast<std::byte*>(values.data());
      each.write(bytes, PeriodicData::kPeriod, 0);
      std::vector<std::byte> narrow(2 * values.size());
      ops::narrow(carried, values.data(), narrow.data(), PeriodicData::kPeriod, 1.0);
      ops::widen(carried, narrow.data(), values.data(), PeriodicData::kPeriod, 1.0);
      EXPECT_EQ(each.count_wrong(bytes, PeriodicData::kPeriod, 0), 0);
    }
  }
}

TEST(TestData, MayBeOffByOneInBlocksOfInt8) {
  const TestData data(DataType::Float32, ReduceOp::Sum, 3, DataType::Int8);
  const PeriodicData reduced = data.reduced();
  std::vector<float> values(PeriodicData::kPeriod);
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  reduced.write(bytes, PeriodicData::kPeriod, 0);
  const auto far = [](float value) { return std::abs(value) > 127; };
  EXPECT_EQ(std::count_if(values.begin(), values.end(), far), 0);
  values[3] += values[3] > 0 ? -1.0F : 1.0F;
  EXPECT_EQ(reduced.count_wrong(bytes, PeriodicData::kPeriod, 0), 0);
  values[4] = 1000;
  EXPECT_EQ(reduced.count_wrong(bytes, PeriodicData::kPeriod, 0), 1);
  std::fill(values.begin(), values.end(), 0.0F);
  EXPECT_GT(reduced.count_wrong(bytes, PeriodicData::kPeriod, 0), PeriodicData::kPeriod * 9 / 10);
  data.of_rank(0).write(bytes, PeriodicData::kPeriod, 0);  // not reduced
  EXPECT_GT(reduced.count_wrong(bytes, PeriodicData::kPeriod, 0), PeriodicData::kPeriod * 9 / 10);
}

class Reduced : public testing::TestWithParam<std::tuple<int, int>> {};

// What must come out, computed once more in the plainest way.
TEST_P(Reduced, IsTheReductionOfAllRanks) {
  const auto op = static_cast<ReduceOp>(std::get<0>(GetParam()));
  const int ranks = std::get<1>(GetParam());
  const TestData data(DataType::Int64, op, ranks);
  constexpr int64_t count = 1000;
  std::vector<std::vector<int64_t>> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.emplace_back(count);
    data.of_rank(rank).write(reinterpret_cast<std::byte*>(inputs.back().data()), count, 11);
  }
  std::vector<int64_t> result = inputs.front();
  for (int rank = 1; rank < ranks; ++rank) {
    for (size_t i = 0; i < result.size(); ++i) {
      const int64_t value = inputs[static_cast<size_t>(rank)][i];
      if (op == ReduceOp::Min) result[i] = std::min(result[i], value);
      if (op == ReduceOp::Max) result[i] = std::max(result[i], value);
      if (op == ReduceOp::Product) result[i] *= value;
      if (op == ReduceOp::BitAnd) result[i] &= value;
      if (op == ReduceOp::BitOr) result[i] |= value;
      if (op == ReduceOp::BitXor) result[i] ^= value;
      if (op == ReduceOp::Sum || op == ReduceOp::Average) result[i] += value;
    }
  }
  if (op == ReduceOp::Average) {
    for (int64_t& value : result) value /= ranks;
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(result.data());
  EXPECT_EQ(data.reduced().count_wrong(bytes, count, 11), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Reduced,
                         testing::Combine(testing::Range(0, static_cast<int>(ReduceOp::Adasum)),
                                          testing::Values(1, 2, 3, 5)));

// Ranks must not hold the same values: else an allgather in the wrong order, or a broadcast from
// the wrong root, would pass.
TEST(TestData, RanksDiffer) {
  for (int dtype = 0; dtype < kDataTypeCount; ++dtype) {
    const TestData data(static_cast<DataType>(dtype), ReduceOp::Sum, 3);
    std::vector<std::byte> buffer(1000 * size_of(static_cast<DataType>(dtype)));
    data.of_rank(0).write(buffer.data(), 1000, 0);
    EXPECT_GT(data.of_rank(1).count_wrong(buffer.data(), 1000, 0), 300) << dtype;
    EXPECT_GT(data.reduced().count_wrong(buffer.data(), 1000, 0), 100) << dtype;
  }
}

}  // namespace
}  // namespace horon::bench
