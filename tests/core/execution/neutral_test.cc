#include "horon/core/execution/neutral.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/execution/batch_description.h"

namespace horon::core {
namespace {

template <class T>
T neutral(DataType dtype, ReduceOp op) {
  T value[3] = {};
  fill(std::as_writable_bytes(std::span(value)), neutral_pattern(dtype, op));
  EXPECT_EQ(value[0], value[2]);
  return value[0];
}

TEST(Neutral, ChangesNothing) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(neutral<float>(DataType::Float32, ReduceOp::Sum), 0);
  EXPECT_EQ(neutral<float>(DataType::Float32, ReduceOp::Average), 0);
  EXPECT_EQ(neutral<float>(DataType::Float32, ReduceOp::Product), 1);
  EXPECT_EQ(neutral<float>(DataType::Float32, ReduceOp::Min), inf);
  EXPECT_EQ(neutral<float>(DataType::Float32, ReduceOp::Max), -inf);
  EXPECT_EQ(neutral<uint8_t>(DataType::UInt8, ReduceOp::Max), 0);
  EXPECT_EQ(neutral<uint8_t>(DataType::UInt8, ReduceOp::Min), 255);
  EXPECT_EQ(neutral<int64_t>(DataType::Int64, ReduceOp::Max), INT64_MIN);
  EXPECT_EQ(neutral<uint16_t>(DataType::Float16, ReduceOp::Max), 0xfc00);
  EXPECT_EQ(neutral<uint16_t>(DataType::BFloat16, ReduceOp::Product), 0x3f80);
  EXPECT_EQ(neutral<uint8_t>(DataType::Bool, ReduceOp::Min), 1);
  EXPECT_EQ(neutral<int16_t>(DataType::Int16, ReduceOp::BitAnd), -1);
  EXPECT_EQ(neutral<uint8_t>(DataType::UInt8, ReduceOp::BitAnd), 255);
  EXPECT_EQ(neutral<uint8_t>(DataType::Bool, ReduceOp::BitAnd), 1);
  EXPECT_EQ(neutral<int64_t>(DataType::Int64, ReduceOp::BitOr), 0);
  EXPECT_EQ(neutral<uint8_t>(DataType::Bool, ReduceOp::BitXor), 0);
}

// The elements of a rank that has joined would not stay neutral under a scale.
TEST(Neutral, OnceARankHasJoinedTheResultIsScaled) {
  const std::vector<int> ranks = {0, 1, 2};
  const auto describe = [&](ReduceOp op, double prescale, int contributors) {
    EntrySpec spec;
    spec.reduce_op = op;
    spec.prescale = prescale;
    spec.postscale = 3;
    return describe_batch(spec, contributors, ranks);
  };
  const auto expect = [&](ReduceOp op, double prescale, ReduceOp made, double postscale) {
    const Batch batch = describe(op, prescale, 2);
    EXPECT_EQ(batch.reduce_op, made);
    EXPECT_EQ(batch.prescale, 1);
    EXPECT_EQ(batch.postscale, postscale);
    EXPECT_EQ(describe(op, prescale, 3).prescale, prescale) << "nobody has joined";
    EXPECT_EQ(describe(op, prescale, 3).postscale, 3);
  };
  expect(ReduceOp::Product, 4, ReduceOp::Product, 3 * 4 * 4);
  expect(ReduceOp::Min, 4, ReduceOp::Min, 3 * 4);
  expect(ReduceOp::Max, 4, ReduceOp::Max, 3 * 4);
  expect(ReduceOp::Min, -4, ReduceOp::Max, 3 * -4);
  expect(ReduceOp::Max, -4, ReduceOp::Min, 3 * -4);
  EXPECT_EQ(describe(ReduceOp::Average, 4, 2).prescale, 4) << "0 stays 0";
  EXPECT_EQ(describe(ReduceOp::Average, 4, 2).divisor, 2);
}

}  // namespace
}  // namespace horon::core
