// Arithmetic on host memory: the reduction of several buffers in one pass, scaling and casts.
//
// The kernels are vectorised; the instruction set is chosen once, at run time. Every instruction
// set and every alignment give the same bits. Any thread; pointers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::ops {

// How elements are reduced. The fields mean the same as in core::Batch.
//
// 16-bit floats are summed in float and rounded once, at the end. Integers wrap; their Average sums
// in 64 bits, divides and truncates toward zero. In Min and Max a NaN wins and -0 is less than +0,
// so the result does not depend on the order of the ranks. Bool: Sum and Max are "or", Product and
// Min are "and"; there is no Average.
struct Reduction {
  DataType dtype = DataType::Float32;
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;
};

// outputs[j][i] = postscale / divisor * reduce over k = 0, 1, ... of (prescale * inputs[k][i]), for
// every j and i < count. An output is one of the inputs (the same address) or overlaps with none.
// There must be at least one input.
void reduce_many(const Reduction& reduction, std::span<const std::byte* const> inputs,
                 std::span<std::byte* const> outputs, int64_t count);

// Floating types: to[i] = factor * from[i]. The factor is rounded to float, except for float64.
// `to` may be `from`.
void scale(DataType dtype, const std::byte* from, std::byte* to, int64_t count, double factor);

// Float16 and BFloat16 only: to[i] = factor * from[i], multiplied in float.
void widen(DataType dtype, const std::byte* from, float* to, int64_t count, double factor);
void narrow(DataType dtype, const float* from, std::byte* to, int64_t count, double factor);

// Blocks of 64 int8 elements, the last one shorter, behind each other. Before its elements a block
// has a float, its step: the largest magnitude in it over 127. An element is a multiple of the
// step, to the nearest: off by at most half of it. A block with an infinity or NaN comes back as
// NaN; what is so small that it has no step comes back as zero, and the largest float as infinity.
//
// That is the block quantization of gradients in ZeRO++ (Wang et al., 2023, section 3.3), in 8
// bits.
inline constexpr int64_t kInt8BlockElements = 64;
int64_t bytes_of_int8_blocks(int64_t elements);
void narrow_to_int8_blocks(const float* from, std::byte* to, int64_t count, double factor);
void widen_int8_blocks(const std::byte* from, float* to, int64_t count, double factor);

// Integers: to[i] = from[i], and to[i] = from[i] / divisor, toward zero.
void widen_integers(DataType dtype, const std::byte* from, int64_t* to, int64_t count);
void narrow_quotients(DataType dtype, const int64_t* from, std::byte* to, int64_t count,
                      int64_t divisor);

// "avx512", "avx2", "neon" or "portable".
std::string_view kernel_instruction_set();

}  // namespace horon::ops
