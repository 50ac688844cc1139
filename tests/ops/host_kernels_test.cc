// The vector kernels of every instruction set that this machine has, against one element at a time.
#include "horon/ops/host/host_kernels.h"

#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "horon/ops/host/half.h"
#include "horon/ops/host/kernel_table.h"
#include "horon/tests/ops/scalar_reference.h"
#include "horon/tests/support/bfloat16.h"

namespace horon::ops {
namespace {

constexpr int64_t kLengths[] = {0, 1, 3, 7, 31, 64, 255, 1000, 1001};

// Random bits: huge and tiny numbers, and NaN and infinity too.
std::vector<std::byte> random_bits(DataType dtype, int64_t count, std::mt19937_64& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  if (dtype == DataType::Bool) {
    for (std::byte& byte : bytes) byte &= std::byte{1};
  }
  return bytes;
}

bool is_nan(DataType dtype, const std::byte* element) {
  if (!is_floating(dtype)) return false;
  bool nan = false;
  visit_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    T value;
    std::memcpy(&value, element, sizeof(T));
    if constexpr (std::is_floating_point_v<T>) {
      nan = std::isnan(value);
    } else {
      nan = std::isnan(float_from_16(dtype, static_cast<uint16_t>(value)));
    }
  });
  return nan;
}

// Bit for bit, but any NaN is as good as another.
void expect_same(DataType dtype, const std::vector<std::byte>& expected, const std::byte* got) {
  const size_t size = size_of(dtype);
  for (size_t i = 0; i < expected.size(); i += size) {
    if (is_nan(dtype, &expected[i]) && is_nan(dtype, got + i)) continue;
    ASSERT_EQ(std::memcmp(&expected[i], got + i, size), 0) << "element " << i / size;
  }
}

std::vector<std::byte> bytes_in(const std::vector<float>& floats) {
  const auto* const begin = reinterpret_cast<const std::byte*>(floats.data());
  return {begin, begin + floats.size() * sizeof(float)};
}

// By the kernels of this machine.
void round_through_int8_blocks(std::vector<float>& floats) {
  const auto count = static_cast<int64_t>(floats.size());
  std::vector<std::byte> wire(static_cast<size_t>(bytes_of_int8_blocks(count)));
  narrow_to_int8_blocks(floats.data(), wire.data(), count, 1.0);
  widen_int8_blocks(wire.data(), floats.data(), count, 1.0);
}

ReduceCall call_of(const Reduction& r, const std::vector<const std::byte*>& inputs,
                   const std::vector<std::byte*>& outputs, int64_t count) {
  ReduceCall call;
  call.inputs = reinterpret_cast<const void* const*>(inputs.data());
  call.input_count = static_cast<int>(inputs.size());
  call.outputs = reinterpret_cast<void* const*>(outputs.data());
  call.output_count = static_cast<int>(outputs.size());
  call.count = count;
  call.prescale = r.prescale;
  call.factor = r.postscale / static_cast<double>(r.divisor);
  call.divisor = r.divisor;
  return call;
}

// In place on all inputs, which lie `shift` bytes off alignment; the bytes around stay.
void check_in_place(const KernelTable& table, const Reduction& r, int inputs, int64_t count,
                    size_t shift, std::mt19937_64& random) {
  constexpr std::byte kGuard{0xa5};
  const size_t bytes = static_cast<size_t>(count) * size_of(r.dtype);
  std::vector<std::vector<std::byte>> memory;
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (int k = 0; k < inputs; ++k) {
    auto& buffer = memory.emplace_back(bytes + shift + 64, kGuard);
    const std::vector<std::byte> data = random_bits(r.dtype, count, random);
    std::copy(data.begin(), data.end(), buffer.begin() + static_cast<int64_t>(shift));
  }
  for (auto& buffer : memory) {
    to.push_back(buffer.data() + shift);
    from.push_back(to.back());
  }
  const std::vector<std::byte> expected = reference(r, from, count);
  const auto reduce = table.reduce[static_cast<size_t>(r.dtype)][static_cast<size_t>(r.op)];
  reduce(call_of(r, from, to, count));
  for (size_t k = 0; k < memory.size(); ++k) {
    expect_same(r.dtype, expected, to[k]);
    for (size_t i = 0; i < shift; ++i) ASSERT_EQ(memory[k][i], kGuard);
    for (size_t i = shift + bytes; i < memory[k].size(); ++i) ASSERT_EQ(memory[k][i], kGuard);
  }
}

class EveryType : public testing::TestWithParam<DataType> {};

TEST_P(EveryType, ReducesAsTheScalarReference) {
  std::mt19937_64 random(1);
  const DataType dtype = GetParam();
  for (const KernelTable* table : usable_kernels()) {
    for (const ReduceOp op : kAllReduceOps) {
      if (!exists(dtype, op)) continue;
      for (const int64_t count : kLengths) {
        for (const int inputs : {1, 2, 3, 5}) {
          SCOPED_TRACE(testing::Message() << table->name << ' ' << to_string(dtype) << ' '
                                          << to_string(op) << " of " << count << " x " << inputs);
          Reduction r{dtype, op, 1.0, 1.0, op == ReduceOp::Average ? inputs : 1};
          check_in_place(*table, r, inputs, count, static_cast<size_t>(count % 3), random);
          if (HasFatalFailure()) return;
          if (!is_floating(dtype)) continue;
          r.prescale = 0.3;
          r.postscale = 1.7;
          check_in_place(*table, r, inputs, count, 1, random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(EveryType, OutputsMayBeFewerThanInputs) {
  std::mt19937_64 random(2);
  const DataType dtype = GetParam();
  const Reduction r{dtype, ReduceOp::Max};
  constexpr int64_t kCount = 517;
  const auto a = random_bits(dtype, kCount, random);
  const auto b = random_bits(dtype, kCount, random);
  const std::vector<const std::byte*> inputs = {a.data(), b.data()};
  std::vector<std::byte> out(a.size());
  std::byte* to = out.data();
  reduce_many(r, inputs, {&to, 1}, kCount);
  expect_same(dtype, reference(r, inputs, kCount), out.data());
}

// The bits of Min and Max must not depend on the order of the inputs.
TEST_P(EveryType, MinAndMaxIgnoreTheOrder) {
  const DataType dtype = GetParam();
  std::mt19937_64 random(3);
  constexpr int64_t kCount = 4096;
  for (const KernelTable* table : usable_kernels()) {
    for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
      auto a = random_bits(dtype, kCount, random);
      auto b = random_bits(dtype, kCount, random);
      if (is_floating(dtype)) {  // both zeros, and a NaN on either side
        for (auto* zeros : {&a, &b}) std::fill_n(zeros->begin(), 4 * size_of(dtype), std::byte{0});
        a[size_of(dtype) - 1] = std::byte{0x80};
        std::fill_n(a.begin() + 32, size_of(dtype), std::byte{0x7f});
        std::fill_n(b.begin() + 64, size_of(dtype), std::byte{0xff});
      }
      std::vector<std::byte> ab(a.size());
      std::vector<std::byte> ba(a.size());
      const auto reduce = table->reduce[static_cast<size_t>(dtype)][static_cast<size_t>(op)];
      reduce(call_of({dtype, op}, {a.data(), b.data()}, {ab.data()}, kCount));
      reduce(call_of({dtype, op}, {b.data(), a.data()}, {ba.data()}, kCount));
      EXPECT_EQ(ab, ba) << table->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HostKernels, EveryType, testing::ValuesIn(kAllTypes),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(HostKernels, NanWinsInMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
    const std::vector<float> a = {nan, 1, -infinity, infinity};
    const std::vector<float> b = {1, nan, nan, 2};
    std::vector<float> out(4);
    const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(a.data()),
                                 reinterpret_cast<const std::byte*>(b.data())};
    auto* to = reinterpret_cast<std::byte*>(out.data());
    reduce_many({DataType::Float32, op}, inputs, {&to, 1}, 4);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[2]));
    EXPECT_EQ(out[3], op == ReduceOp::Min ? 2 : infinity);
  }
}

// A sum of 16-bit floats is rounded once: 256 + 1 + 1 would stay 256 if bfloat16 were rounded in
// between.
TEST(HostKernels, SixteenBitSumsAreRoundedOnce) {
  const uint16_t big = bfloat16_from_float(256);
  const uint16_t one = bfloat16_from_float(1);
  const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(&big),
                               reinterpret_cast<const std::byte*>(&one),
                               reinterpret_cast<const std::byte*>(&one)};
  uint16_t sum = 0;
  auto* to = reinterpret_cast<std::byte*>(&sum);
  reduce_many({DataType::BFloat16, ReduceOp::Sum}, inputs, {&to, 1}, 1);
  EXPECT_EQ(float_from_bfloat16(sum), 258);
}

TEST(HostKernels, AveragesOfIntegersDoNotOverflow) {
  const int8_t values[] = {127, 127, 127};
  const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(&values[0]),
                               reinterpret_cast<const std::byte*>(&values[1]),
                               reinterpret_cast<const std::byte*>(&values[2])};
  int8_t mean = 0;
  auto* to = reinterpret_cast<std::byte*>(&mean);
  reduce_many({DataType::Int8, ReduceOp::Average, 1, 1, 3}, inputs, {&to, 1}, 1);
  EXPECT_EQ(mean, 127);
}

TEST(HostKernels, EveryHalfSurvivesTheRoundTrip) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  std::vector<uint16_t> back(all.size());
  const auto count = static_cast<int64_t>(all.size());
  for (const DataType dtype : {DataType::Float16, DataType::BFloat16}) {
    widen(dtype, reinterpret_cast<const std::byte*>(all.data()), wide.data(), count, 1.0);
    narrow(dtype, wide.data(), reinterpret_cast<std::byte*>(back.data()), count, 1.0);
    for (size_t i = 0; i < all.size(); ++i) {
      const float scalar = float_from_16(dtype, all[i]);
      if (std::isnan(scalar)) {
        EXPECT_TRUE(std::isnan(wide[i]) && std::isnan(float_from_16(dtype, back[i]))) << i;
        continue;
      }
      EXPECT_EQ(std::bit_cast<uint32_t>(scalar), std::bit_cast<uint32_t>(wide[i])) << i;
      EXPECT_EQ(all[i], back[i]);
      EXPECT_EQ(all[i], float_to_16(dtype, scalar));
    }
  }
}

// The nearest of the two neighbours, the even one of two equally near.
TEST(HostKernels, NarrowingRoundsToNearestEven) {
  for (const DataType dtype : {DataType::Float16, DataType::BFloat16}) {
    for (uint32_t low = 0; low < 0x7f80; ++low) {
      const auto below = static_cast<uint16_t>(low);
      const auto above = static_cast<uint16_t>(low + 1);
      const float a = float_from_16(dtype, below);
      const float b = float_from_16(dtype, above);
      if (!std::isfinite(b) || std::isnan(a)) break;
      const float middle = a + (b - a) / 2;
      const uint16_t even = low % 2 == 0 ? below : above;
      ASSERT_EQ(float_to_16(dtype, middle), even) << a;
      ASSERT_EQ(float_to_16(dtype, std::nextafter(middle, a)), below) << a;
      ASSERT_EQ(float_to_16(dtype, std::nextafter(middle, b)), above) << a;
      ASSERT_EQ(float_to_16(dtype, -middle), even | 0x8000);
    }
  }
  EXPECT_EQ(half_from_float(65519.996f), 0x7bff);
  EXPECT_EQ(half_from_float(65520.0f), 0x7c00);
}

TEST(HostKernels, EveryInstructionSetConvertsAlike) {
  std::vector<float> floats;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 9973) {
    floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  const auto count = static_cast<int64_t>(floats.size());
  std::vector<uint16_t> half(floats.size());
  std::vector<uint16_t> brain(floats.size());
  for (const KernelTable* table : usable_kernels()) {
    table->narrow_half(floats.data(), half.data(), count, 1.0f);
    table->narrow_bfloat16(floats.data(), brain.data(), count, 1.0f);
    for (size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(half[i], half_from_float(floats[i])) << table->name << ' ' << floats[i];
      ASSERT_EQ(brain[i], bfloat16_from_float(floats[i])) << table->name << ' ' << floats[i];
    }
  }
}

TEST(HostKernels, EveryInstructionSetMakesTheSameBlocksOfInt8) {
  std::mt19937_64 random(11);
  for (const int64_t count : kLengths) {
    for (int sort = 0; sort < 4; ++sort) {
      std::vector<float> floats;
      for (int64_t i = 0; i < count; ++i) {
        const auto bits = static_cast<uint32_t>(random());
        floats.push_back(sort == 0 ? std::bit_cast<float>(bits)  // also NaN, infinity and denormals
                                   : std::ldexp(static_cast<float>(bits) / 0x1p31F - 1,
                                                sort == 1 ? 0 : (sort == 2 ? -120 : 110)));
      }
      std::vector<float> expected = floats;
      round_in_int8_blocks(expected);
      for (const KernelTable* table : usable_kernels()) {
        std::vector<std::byte> wire(static_cast<size_t>(bytes_of_int8_blocks(count)) + 1,
                                    std::byte{0xa5});
        table->narrow_int8_blocks(floats.data(), wire.data(), count, 1.0f);
        EXPECT_EQ(wire.back(), std::byte{0xa5});
        std::vector<float> got(floats.size() + 1, 77.0F);
        table->widen_int8_blocks(wire.data(), got.data(), count, 1.0f);
        EXPECT_EQ(got.back(), 77.0F);
        SCOPED_TRACE(testing::Message() << table->name << ' ' << count << " of sort " << sort);
        expect_same(DataType::Float32, bytes_in(expected),
                    reinterpret_cast<const std::byte*>(got.data()));
      }
    }
  }
}

TEST(HostKernels, BlocksOfInt8AreOffByHalfAStepAtMost) {
  std::mt19937_64 random(12);
  constexpr int64_t count = 64 * 100 + 5;
  std::vector<float> floats;
  for (int64_t i = 0; i < count; ++i) {
    floats.push_back(static_cast<float>(random() % 2001) - 1000.0F);
    if (i / kInt8BlockElements % 2 == 1) floats.back() = 0;  // a block of zeros has no step
  }
  std::vector<std::byte> wire(static_cast<size_t>(bytes_of_int8_blocks(count)));
  std::vector<float> got(floats.size());
  narrow_to_int8_blocks(floats.data(), wire.data(), count, 0.5);
  widen_int8_blocks(wire.data(), got.data(), count, 2.0);
  for (int64_t begin = 0; begin < count; begin += kInt8BlockElements) {
    const int64_t end = std::min(count, begin + kInt8BlockElements);
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(floats[i]));
    for (int64_t i = begin; i < end; ++i) {
      ASSERT_LE(std::abs(got[i] - floats[i]), largest / 254 * 1.0001F) << i;
      if (std::abs(floats[i]) == largest) {
        ASSERT_FLOAT_EQ(got[i], floats[i]);
      }
    }
  }
}

TEST(HostKernels, ABlockOfInt8TellsInfinityAndNan) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> floats(3 * kInt8BlockElements, 1.0F);
    floats[kInt8BlockElements + 63] = bad;
    round_through_int8_blocks(floats);
    for (size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(std::isnan(floats[i]), i / kInt8BlockElements == 1) << i << ' ' << bad;
    }
  }
}

TEST(HostKernels, ScalesInAndOutOfPlace) {
  std::vector<double> values = {1, -2, 0.5};
  std::vector<double> out(3);
  scale(DataType::Float64, reinterpret_cast<const std::byte*>(values.data()),
        reinterpret_cast<std::byte*>(out.data()), 3, 0.1);
  auto* data = reinterpret_cast<std::byte*>(values.data());
  scale(DataType::Float64, data, data, 3, 0.1);
  EXPECT_EQ(values, out);
  EXPECT_EQ(out, (std::vector<double>{1 * 0.1, -2 * 0.1, 0.5 * 0.1}));
}

TEST(HostKernels, IntegersAreWidenedAndDivided) {
  for (const DataType dtype :
       {DataType::Int8, DataType::UInt8, DataType::Int16, DataType::Int32, DataType::Int64}) {
    std::vector<std::byte> memory(5 * size_of(dtype));
    for (int64_t i = 0; i < 5; ++i) put_number(dtype, memory.data(), i, 100 + i);
    std::vector<int64_t> wide(5);
    widen_integers(dtype, memory.data(), wide.data(), 5);
    EXPECT_EQ(wide, (std::vector<int64_t>{100, 101, 102, 103, 104}));
    for (int64_t& value : wide) value = dtype == DataType::UInt8 ? value : -value;
    narrow_quotients(dtype, wide.data(), memory.data(), 5, 3);
    widen_integers(dtype, memory.data(), wide.data(), 5);
    const int64_t sign = dtype == DataType::UInt8 ? 1 : -1;
    EXPECT_EQ(wide, (std::vector<int64_t>{33 * sign, 33 * sign, 34 * sign, 34 * sign, 34 * sign}));
  }
}

TEST(HostKernels, NamesItsInstructionSet) {
  EXPECT_EQ(kernel_instruction_set(), usable_kernels().front()->name);
  EXPECT_EQ(usable_kernels().back(), &portable_kernels());
}

}  // namespace
}  // namespace horon::ops
