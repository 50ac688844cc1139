// Values for collectives whose result is known exactly.
//
// Zeros and repeated buffers make a benchmark lie: pages of zeros are copied faster, and data that
// nobody rewrites need not travel. So every repetition writes other values. They repeat with a
// prime period, so that writing them costs a copy from the cache and checking them costs a
// comparison, and they are small integers, so that sums of 16-bit floats are exact too.
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

  // `values`: one period. `tolerance`: relative to the larger of 1 and the value; 0: exact.
  PeriodicData(const std::vector<double>& values, DataType dtype, double tolerance);

  // to[i] = values[(i + offset) % period]
  void write(std::byte* to, int64_t count, int64_t offset) const;
  // How many of the elements differ from that.
  int64_t count_wrong(const std::byte* from, int64_t count, int64_t offset) const;

 private:
  int64_t count_far(const std::byte* from, int64_t begin, int64_t count) const;

  const DataType dtype_;
  const size_t element_bytes_;
  const double tolerance_;
  std::vector<double> values_;
  std::vector<std::byte> bytes_;
};

// What each rank puts in, and what must come out.
class TestData {
 public:
  TestData(DataType dtype, ReduceOp op, int ranks);

  PeriodicData of_rank(int rank) const;
  PeriodicData reduced() const;

 private:
  std::vector<double> values_of(int rank) const;
  double combine(double a, double b) const;

  const DataType dtype_;
  const ReduceOp op_;
  const int ranks_;
};

}  // namespace horon::bench
