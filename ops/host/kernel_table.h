// The kernels of one instruction set, as a table of plain functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::ops {

// The scales and the divisor are applied by floating kernels as `prescale` and `factor` (postscale
// / divisor), by the averages of integers as `divisor`.
struct ReduceCall {
  const void* const* inputs = nullptr;
  int input_count = 0;
  void* const* outputs = nullptr;
  int output_count = 0;
  int64_t count = 0;
  double prescale = 1.0;
  double factor = 1.0;
  int64_t divisor = 1;
};

struct KernelTable {
  using Reduce = void (*)(const ReduceCall& call);
  using Widen = void (*)(const void* from, float* to, int64_t count, float factor);
  using Narrow = void (*)(const float* from, void* to, int64_t count, float factor);

  const char* name;
  Reduce reduce[kDataTypeCount][kReduceOpCount];  // null: there is no such reduction
  Widen widen_half;
  Widen widen_bfloat16;
  Narrow narrow_half;
  Narrow narrow_bfloat16;
};

const KernelTable& portable_kernels();
// Those that this machine can run, the best one first; portable_kernels() is always the last.
std::vector<const KernelTable*> usable_kernels();
const KernelTable& best_kernels();

}  // namespace horon::ops
