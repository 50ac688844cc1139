// Values for collectives whose result is known exactly.
//
// Every repetition writes new values, because zeros and old values flatter: pages of zeros are
// copied faster, and data that nobody has rewritten need not travel between cores. The values
// repeat with a prime period, so writing them is a copy from the cache and checking them a
// comparison. They are small integers, so sums of 16-bit floats are exact too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::bench {

class PeriodicData {
 public:
  static constexpr int64_t kPeriod = 65521;

  struct Tolerance {
    double relative = 0;  // to the larger of 1 and the value
    double absolute = 0;
  };
  // `values` is one period. Without a tolerance they are exact.
  PeriodicData(const std::vector<double>& values, DataType dtype, Tolerance tolerance);

  // to[i] = values[(i + offset) % period]
  void write(std::byte* to, int64_t count, int64_t offset) const;
  // How many elements differ from what write() writes.
  int64_t count_wrong(const std::byte* from, int64_t count, int64_t offset) const;

 private:
  int64_t count_far(const std::byte* from, int64_t begin, int64_t count) const;

  const DataType dtype_;
  const size_t element_bytes_;
  const Tolerance tolerance_;
  std::vector<double> values_;
  std::vector<std::byte> bytes_;
};

// The inputs of each rank and the expected results.
class TestData {
 public:
  // `carried`: the narrowest type in which the values travel (HORON_WIRE_DTYPE, --compression). It
  // holds all the values, so a sum is exact all the same. Only float32 in blocks of int8 may be
  // off, by 1 where all values are at most 127.
  TestData(DataType dtype, ReduceOp op, int ranks, DataType carried);
  TestData(DataType dtype, ReduceOp op, int ranks) : TestData(dtype, op, ranks, dtype) {}

  PeriodicData of_rank(int rank) const;
  PeriodicData reduced() const;

 private:
  std::vector<double> values_of(int rank) const;
  double combine(double a, double b) const;

  const DataType dtype_;
  const ReduceOp op_;
  const int ranks_;
  const DataType carried_;
};

}  // namespace horon::bench
