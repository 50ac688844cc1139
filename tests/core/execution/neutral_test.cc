#include "horon/core/execution/neutral.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace horon::core
