#include "horon/bench/test_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "horon/core/base/error.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::bench {
namespace {

template <class T>
void store(std::byte* to, const std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    // Through 64 bits, so that integers that are too large wrap.
    const T value = std::is_floating_point_v<T> ? static_cast<T>(values[i])
                                                : static_cast<T>(static_cast<int64_t>(values[i]));
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

template <class T>
void load(const std::byte* from, std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    T value{};
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(value);
  }
}

void store_as(DataType dtype, std::byte* to, const std::vector<double>& values) {
  switch (dtype) {
    case DataType::Float32:
      return store<float>(to, values);
    case DataType::Float64:
      return store<double>(to, values);
    case DataType::Int8:
      return store<int8_t>(to, values);
    case DataType::UInt8:
      return store<uint8_t>(to, values);
    case DataType::Int16:
      return store<int16_t>(to, values);
    case DataType::Int32:
      return store<int32_t>(to, values);
    case DataType::Int64:
      return store<int64_t>(to, values);
    case DataType::Bool:
      return store<uint8_t>(to, values);
    case DataType::Float16:
    case DataType::BFloat16:
      break;
  }
  const std::vector<float> floats(values.begin(), values.end());
  ops::narrow(dtype, floats.data(), to, static_cast<int64_t>(floats.size()), 1.0);
}

void load_as(DataType dtype, const std::byte* from, std::vector<double>& values) {
  switch (dtype) {
    case DataType::Float32:
      return load<float>(from, values);
    case DataType::Float64:
      return load<double>(from, values);
    case DataType::Int8:
      return load<int8_t>(from, values);
    case DataType::UInt8:
      return load<uint8_t>(from, values);
    case DataType::Int16:
      return load<int16_t>(from, values);
    case DataType::Int32:
      return load<int32_t>(from, values);
    case DataType::Int64:
      return load<int64_t>(from, values);
    case DataType::Bool:
      return load<uint8_t>(from, values);
    case DataType::Float16:
    case DataType::BFloat16:
      break;
  }
  std::vector<float> floats(values.size());
  ops::widen(dtype, from, floats.data(), static_cast<int64_t>(floats.size()), 1.0);
  std::copy(floats.begin(), floats.end(), values.begin());
}

// The type holds all integers up to this exactly.
double exact_limit(DataType dtype) {
  switch (dtype) {
    case DataType::BFloat16:
      return 256;
    case DataType::Float16:
      return 2048;
    case DataType::Int8:
      return 127;
    case DataType::UInt8:
      return 255;
    default:
      return 32767;
  }
}

double epsilon(DataType dtype) {
  switch (dtype) {
    case DataType::BFloat16:
      return 0x1p-8;
    case DataType::Float16:
      return 0x1p-11;
    case DataType::Float32:
      return 0x1p-23;
    case DataType::Float64:
      return 0x1p-52;
    default:
      return 0;
  }
}

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

PeriodicData::PeriodicData(const std::vector<double>& values, DataType dtype, Tolerance tolerance)
    : dtype_(dtype),
      element_bytes_(size_of(dtype)),
      tolerance_(tolerance),
      values_(values),
      bytes_(values.size() * size_of(dtype)) {
  HORON_CHECK(static_cast<int64_t>(values.size()) == kPeriod, "one period is needed");
  store_as(dtype, bytes_.data(), values_);
}

void PeriodicData::write(std::byte* to, int64_t count, int64_t offset) const {
  for (int64_t begin = offset % kPeriod; count > 0; begin = 0) {
    const int64_t now = std::min(count, kPeriod - begin);
    const size_t bytes = static_cast<size_t>(now) * element_bytes_;
    std::memcpy(to, bytes_.data() + static_cast<size_t>(begin) * element_bytes_, bytes);
    to += bytes;
    count -= now;
  }
}

int64_t PeriodicData::count_wrong(const std::byte* from, int64_t count, int64_t offset) const {
  int64_t wrong = 0;
  for (int64_t begin = offset % kPeriod; count > 0; begin = 0) {
    const int64_t now = std::min(count, kPeriod - begin);
    const size_t bytes = static_cast<size_t>(now) * element_bytes_;
    const std::byte* expected = bytes_.data() + static_cast<size_t>(begin) * element_bytes_;
    if (std::memcmp(from, expected, bytes) != 0) wrong += count_far(from, begin, now);
    from += bytes;
    count -= now;
  }
  return wrong;
}

int64_t PeriodicData::count_far(const std::byte* from, int64_t begin, int64_t count) const {
  std::vector<double> found(static_cast<size_t>(count));
  load_as(dtype_, from, found);
  int64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double expected = values_[static_cast<size_t>(begin) + i];
    const double allowed =
        tolerance_.absolute + tolerance_.relative * std::max(1.0, std::abs(expected));
    // In this form a NaN counts as wrong.
    if (!(std::abs(found[i] - expected) <= allowed)) ++wrong;
  }
  return wrong;
}

TestData::TestData(DataType dtype, ReduceOp op, int ranks, DataType carried)
    : dtype_(dtype), op_(op), ranks_(ranks), carried_(carried) {}

std::vector<double> TestData::values_of(int rank) const {
  std::vector<double> values(PeriodicData::kPeriod);
  const bool unsigned_type = dtype_ == DataType::UInt8 || dtype_ == DataType::Bool;
  const double limit_of_rank = std::floor(exact_limit(carried_) / ranks_);
  const auto limit = static_cast<int64_t>(std::max(1.0, limit_of_rank));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t random = mix(static_cast<uint64_t>(rank) << 32 | i);
    const auto magnitude = static_cast<double>(random % static_cast<uint64_t>(limit + 1));
    const bool negative = !unsigned_type && (random >> 60) % 2 == 1;
    if (dtype_ == DataType::Bool) {
      values[i] = static_cast<double>(random >> 63);
    } else if (op_ == ReduceOp::Product) {
      // Powers of two, so that products are exact; on few ranks only, so that none overflows.
      values[i] = (negative ? -1.0 : 1.0) * (rank < 4 && (random >> 50) % 2 == 1 ? 2.0 : 1.0);
    } else {
      values[i] = negative ? -magnitude : magnitude;
    }
  }
  return values;
}

double TestData::combine(double a, double b) const {
  const bool boolean = dtype_ == DataType::Bool;
  switch (op_) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return boolean ? std::max(a, b) : a + b;
    case ReduceOp::Min:
      return std::min(a, b);
    case ReduceOp::Max:
      return std::max(a, b);
    case ReduceOp::Product:
      return boolean ? std::min(a, b) : a * b;
    case ReduceOp::BitAnd:
      return static_cast<double>(static_cast<int64_t>(a) & static_cast<int64_t>(b));
    case ReduceOp::BitOr:
      return static_cast<double>(static_cast<int64_t>(a) | static_cast<int64_t>(b));
    case ReduceOp::BitXor:
      return static_cast<double>(static_cast<int64_t>(a) ^ static_cast<int64_t>(b));
    case ReduceOp::Adasum:
      break;  // not timed
  }
  return 0;
}

PeriodicData TestData::of_rank(int rank) const { return {values_of(rank), dtype_, {}}; }

PeriodicData TestData::reduced() const {
  std::vector<double> result = values_of(0);
  for (int rank = 1; rank < ranks_; ++rank) {
    const std::vector<double> other = values_of(rank);
    for (size_t i = 0; i < result.size(); ++i) result[i] = combine(result[i], other[i]);
  }
  const bool average = op_ == ReduceOp::Average;
  if (average) {
    for (double& value : result) {
      value /= ranks_;
      if (!is_floating(dtype_)) value = std::trunc(value);
    }
  }
  const bool rounds = average || ranks_ > exact_limit(carried_);
  const bool in_blocks = is_floating(dtype_) && carried_ == DataType::Int8;
  if (!in_blocks) return {result, dtype_, {.relative = rounds ? 2 * epsilon(carried_) : 0}};
  // The sums of the hosts are rounded by half a step together, and then the result by another half.
  // Half a step is 1/254 of the largest value of a block.
  const double largest = std::max(exact_limit(carried_), static_cast<double>(ranks_));
  return {result, dtype_, {.absolute = 2 * largest / 254 / (average ? ranks_ : 1) * 1.001}};
}

}  // namespace horon::bench
