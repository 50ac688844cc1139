// The kernels that pack and unpack, on the GPU that this program is linked with: the one of threads
// runs the same bodies as a real one.
#include "horon/ops/cuda/move.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "horon/ops/cuda/cuda_memory.h"
#include "horon/tests/ops/scalar_reference.h"
#include "horon/tests/support/bfloat16.h"
#include "horon/tests/support/gpu/gpu.h"

namespace horon::ops {
namespace {

using core::CopyItem;
using Cast = CopyItem::Cast;

constexpr std::byte kGuard{0x5a};

class Moves : public testing::Test {
 protected:
  static void SetUpTestSuite() { gpu = test::open_gpu(0, test::Needs::Cuda, why_none); }
  static void TearDownTestSuite() { gpu.reset(); }
  void SetUp() override {
    if (gpu == nullptr) GTEST_SKIP() << "no GPU: " << why_none;
  }

  // Runs the launch and waits until it is done.
  static void run(const MoveLaunch& launch) {
    CudaQueue queue(gpu->cuda());
    queue.launch(launch);
    queue.record()->wait();
  }
  static void run(const std::vector<CopyItem>& items) {
    for (const MoveLaunch& launch : make_launches(items)) run(launch);
  }

 public:
  static inline std::unique_ptr<test::Gpu> gpu;  // null: there is none
  static inline std::string why_none;
};

// An array that the host and the device can access.
template <class T>
class Array {
 public:
  explicit Array(size_t count, T value = {})
      : count_(count), bytes_(Moves::gpu->common_memory(count * sizeof(T))) {
    std::fill_n(begin(), count, value);
  }
  T* begin() const { return reinterpret_cast<T*>(bytes_.get()); }
  T& operator[](size_t i) const { return begin()[i]; }
  std::byte* data() const { return bytes_.get(); }
  size_t size() const { return count_; }

 private:
  const size_t count_;
  const std::shared_ptr<std::byte> bytes_;
};

// Memory at any distance from a vector's alignment, between guards.
class Memory {
 public:
  Memory(size_t bytes, size_t shift) : bytes_(bytes), all_(bytes + 128 + shift, kGuard) {
    const auto address = reinterpret_cast<uintptr_t>(all_.data());
    begin_ = (64 - address % 64) + shift;
  }
  std::byte* data() const { return all_.data() + begin_; }
  bool is_guarded() const {
    for (size_t i = 0; i < all_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && all_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  const size_t bytes_;
  size_t begin_ = 0;
  const Array<std::byte> all_;
};

float float_at(const std::byte* data, int64_t index) {
  float value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

TEST_F(Moves, CopyAnyLengthAtAnyAddress) {
  std::mt19937 random(1);
  for (const size_t bytes : {1, 2, 3, 15, 16, 17, 64, 1000, 32768, 32769, 100001}) {
    for (const size_t from_shift : {0, 1, 2, 4, 8}) {
      for (const size_t to_shift : {0, 1, 2, 4, 8}) {
        Memory from(bytes, from_shift);
        Memory to(bytes, to_shift);
        for (size_t i = 0; i < bytes; ++i) from.data()[i] = static_cast<std::byte>(random());
        CopyItem item;
        item.from = from.data();
        item.to = to.data();
        item.bytes = bytes;
        run({item});
        ASSERT_EQ(std::memcmp(from.data(), to.data(), bytes), 0)
            << bytes << " bytes, shifted by " << from_shift << " and " << to_shift;
        ASSERT_TRUE(to.is_guarded());
      }
    }
  }
}

TEST_F(Moves, FillWithAPattern) {
  for (const size_t bytes : {2, 8, 10, 1000, 40000}) {
    for (const size_t shift : {0, 2, 8}) {
      Memory to(bytes, shift);
      CopyItem item;
      item.to = to.data();
      item.bytes = bytes;
      item.pattern = 0x1234123412341234;
      run({item});
      for (size_t i = 0; i < bytes; i += 2) {
        ASSERT_EQ(to.data()[i], std::byte{0x34}) << bytes << ' ' << shift << ' ' << i;
        ASSERT_EQ(to.data()[i + 1], std::byte{0x12}) << bytes << ' ' << shift << ' ' << i;
      }
      ASSERT_TRUE(to.is_guarded());
    }
  }
}

// Bit for bit as the scalar conversions.
TEST_F(Moves, NarrowAndWidenRoundOnce) {
  std::mt19937 random(2);
  for (const Compression type : {Compression::Float16, Compression::BFloat16}) {
    const DataType narrow = type == Compression::Float16 ? DataType::Float16 : DataType::BFloat16;
    for (const size_t count : {1, 7, 8, 1000, 9000}) {
      for (const size_t shift : {0, 4}) {
        Memory wide(count * 4, shift);
        Memory thin(count * 2, shift);
        Memory back(count * 4, shift);
        for (size_t i = 0; i < count; ++i) {
          const float value = std::ldexp(static_cast<float>(random() % 100000) - 5e4F,
                                         static_cast<int>(random() % 40) - 30);
          std::memcpy(wide.data() + i * 4, &value, 4);
        }
        CopyItem to_thin{wide.data(), thin.data(), count * 4, Cast::Narrow, type, 0.3, 0};
        CopyItem to_wide{thin.data(), back.data(), count * 2, Cast::Widen, type, 1.7, 0};
        run({to_thin});
        run({to_wide});
        for (size_t i = 0; i < count; ++i) {
          const auto index = static_cast<int64_t>(i);
          const uint16_t expected = float_to_16(narrow, 0.3F * float_at(wide.data(), index));
          uint16_t stored;
          std::memcpy(&stored, thin.data() + i * 2, 2);
          ASSERT_EQ(stored, expected) << i;
          ASSERT_EQ(float_at(back.data(), index), 1.7F * float_from_16(narrow, expected)) << i;
        }
        ASSERT_TRUE(thin.is_guarded() && back.is_guarded());
      }
    }
  }
}

TEST_F(Moves, ScaleInTheTypeItself) {
  for (const DataType dtype :
       {DataType::Float32, DataType::Float64, DataType::Float16, DataType::BFloat16}) {
    Memory data(1001 * size_of(dtype), size_of(dtype));
    Memory expected(1001 * size_of(dtype), 0);
    for (int64_t i = 0; i < 1001; ++i) {
      put_number(dtype, data.data(), i, i % 64);
      put_number(dtype, expected.data(), i, 3 * (i % 64));
    }
    MoveLaunch launch = MoveLaunch::scale(dtype, dtype, 3.0);
    ASSERT_TRUE(launch.add(data.data(), data.data(), 1001));
    run(launch);
    EXPECT_EQ(std::memcmp(data.data(), expected.data(), 1001 * size_of(dtype)), 0)
        << to_string(dtype);
    EXPECT_TRUE(data.is_guarded());
  }
}

TEST_F(Moves, DivideTowardZero) {
  for (const DataType dtype :
       {DataType::Int8, DataType::UInt8, DataType::Int16, DataType::Int32, DataType::Int64}) {
    const int64_t low = dtype == DataType::UInt8 ? 0 : -100;
    Memory data(200 * size_of(dtype), 0);
    Memory expected(200 * size_of(dtype), 0);
    for (int64_t i = 0; i < 200; ++i) {
      put_number(dtype, data.data(), i, (low + i) % 101);
      put_number(dtype, expected.data(), i, (low + i) % 101 / 3);
    }
    MoveLaunch launch = MoveLaunch::divide(dtype, 3);
    ASSERT_TRUE(launch.add(data.data(), data.data(), 200));
    run(launch);
    EXPECT_EQ(std::memcmp(data.data(), expected.data(), 200 * size_of(dtype)), 0)
        << to_string(dtype);
  }
}

TEST_F(Moves, WhatIsNotFiniteIsReported) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf(""), 1e30F}) {
    for (const DataType to_type : {DataType::Float32, DataType::Float16}) {
      const bool expected = to_type == DataType::Float16 || !std::isfinite(bad);
      const Array<float> values(20000, 1.0F);
      values[12345] = bad;
      const Array<float> result(values.size());
      MoveLaunch launch = MoveLaunch::scale(DataType::Float32, to_type, 1.0);
      const Array<uint32_t> flag(1);
      launch.report_not_finite(flag.begin());
      ASSERT_TRUE(launch.add(values.data(), result.data(), static_cast<int64_t>(values.size())));
      run(launch);
      EXPECT_EQ(flag[0], expected ? 1U : 0U) << bad << ' ' << to_string(to_type);
    }
  }
}

TEST_F(Moves, AThousandTensorsAndTheirFillsAreOneLaunch) {
  const Array<std::byte> from(1000 * 64, std::byte{7});
  const Array<std::byte> to(1001 * 64);
  std::vector<CopyItem> items;
  for (size_t i = 0; i < 1000; ++i) {
    CopyItem item;
    item.from = &from[i * 64];
    item.to = &to[i * 64];
    item.bytes = i % 65;
    items.push_back(item);
  }
  CopyItem fill;
  fill.to = &to[1000 * 64];
  fill.bytes = 64;
  fill.pattern = 0x0909090909090909;
  items.push_back(fill);
  const std::vector<MoveLaunch> launches = make_launches(items);
  ASSERT_EQ(launches.size(), 1U);
  run(launches[0]);
  for (size_t i = 0; i < to.size(); ++i) {
    const bool copied = i / 64 < 1000 && i % 64 < i / 64 % 65;
    ASSERT_EQ(to[i], i >= 1000 * 64 ? std::byte{9} : copied ? std::byte{7} : std::byte{0}) << i;
  }
}

TEST_F(Moves, UnlikeCopiesAndTooManyTakeMoreLaunches) {
  std::vector<std::byte> memory(64);
  CopyItem plain;
  plain.from = memory.data();
  plain.to = memory.data();
  plain.bytes = 4;
  CopyItem cast = plain;
  cast.cast = Cast::Narrow;
  cast.type = Compression::BFloat16;
  CopyItem other_factor = cast;
  other_factor.factor = 2.0;
  CopyItem other_type = cast;
  other_type.type = Compression::Float16;
  CopyItem fill;
  fill.to = memory.data();
  fill.bytes = 8;
  CopyItem other_fill = fill;
  other_fill.pattern = 1;
  EXPECT_EQ(make_launches(std::vector{plain, cast, other_factor, fill, other_fill}).size(), 4U);
  EXPECT_EQ(make_launches(std::vector{cast, other_type}).size(), 2U);
  EXPECT_EQ(make_launches(std::vector(MoveLaunch::kMovesMax + 1, plain)).size(), 2U);
  EXPECT_TRUE(make_launches({}).empty());
}

// A fill has no source, also where it goes on.
TEST_F(Moves, ALongFillIsSeveralFills) {
  constexpr uintptr_t begin = uintptr_t{1} << 40;
  constexpr int64_t most = int64_t{1} << 30;
  MoveLaunch launch;
  ASSERT_TRUE(launch.add_fill(reinterpret_cast<std::byte*>(begin), most + 5, 0));
  ASSERT_EQ(launch.moves().size(), 2U);
  for (const Move& move : launch.moves()) EXPECT_EQ(move.from, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(launch.moves()[1].to), begin + uintptr_t{most});
  EXPECT_EQ(launch.moves()[1].count, 5U);
}

// A program that scales by what it has computed gets NaN, and goes on.
TEST_F(Moves, AFactorThatIsNoNumberIsOneFactor) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Array<float> from(8, 1.0F);
  const Array<uint16_t> to(8);
  CopyItem item;
  item.from = reinterpret_cast<const std::byte*>(from.begin());
  item.to = reinterpret_cast<std::byte*>(to.begin());
  item.bytes = 4 * sizeof(float);
  item.cast = Cast::Narrow;
  item.type = Compression::BFloat16;
  item.factor = nan;
  CopyItem next = item;
  next.from += item.bytes;
  next.to += 4 * sizeof(uint16_t);
  const std::vector<MoveLaunch> launches = make_launches(std::vector{item, next});
  ASSERT_EQ(launches.size(), 1U);
  run(launches.front());
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(std::isnan(float_from_bfloat16(to[i]))) << i;
}

// A kernel's parameters are limited, see MoveLaunch::kMovesMax.
TEST_F(Moves, ATableFitsInTheParametersOfAKernel) {
  EXPECT_LE(sizeof(MoveParameters) + MoveLaunch::kMovesMax * sizeof(Move), 32764U);
}

}  // namespace
}  // namespace horon::ops
