// The kernels of one instruction set, as a table of plain functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::ops {

// The kernels of floating types apply `prescale` and `factor` (postscale / divisor). The averages
// of integers apply `divisor`.
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
  Widen widen_int8_blocks;
  Narrow narrow_int8_blocks;
};

const KernelTable& portable_kernels();
// The kernels that this machine can run, the best first; portable_kernels() is always the last.
std::vector<const KernelTable*> usable_kernels();
const KernelTable& best_kernels();

}  // namespace horon::ops
