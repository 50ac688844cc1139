// The loops that make blocks of int8 of float32, and float32 of them (host_kernels.h), compiled
// once for each instruction set (kernel_vectors.h). `F`: Plain<Isa, float>.
#pragma once

#include <cstddef>
#include <cstdint>

#include "horon/ops/host/kernel_vectors.h"

namespace horon::ops {
namespace {

constexpr int64_t kInt8Block = 64;  // as in host_kernels.h
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr float kNoStep = 0x1p-112F;  // a block below it: 127 / x would come near the largest float

// `block`: kInt8Block floats, in whole vectors.
template <class F>
uint32_t largest_magnitude_bits(const typename F::V* block) {
  using Bits = Vector<int32_t, F::kLanes>;
  Bits largest = {};
  for (int v = 0; v < kInt8Block / F::kLanes; ++v) {
    const Bits magnitude = (Bits)block[v] & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  int32_t result = 0;
  for (int lane = 0; lane < F::kLanes; ++lane) {
    if (largest[lane] > result) result = largest[lane];
  }
  return static_cast<uint32_t>(result);
}

template <class F>
void narrow_int8_block(const typename F::V* block, float* step, int8_t* elements) {
  using Int = Vector<int32_t, F::kLanes>;
  // Added to a float below 2^22 it leaves the nearest integer in the last bits, halves to the even.
  constexpr float kRounder = 12582912.0F;
  const uint32_t bits = largest_magnitude_bits<F>(block);
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof(largest));
  float inverse = 127.0F / largest;
  *step = largest / 127.0F;
  if (bits >= kInfinityBits || largest < kNoStep) {
    inverse = 0;
    *step = bits >= kInfinityBits ? __builtin_nanf("") : 0.0F;
  }
  for (int v = 0; v < kInt8Block / F::kLanes; ++v) {
    const Int shifted = (Int)(block[v] * inverse + kRounder) - (Int)(typename F::V{} + kRounder);
    store_vector(elements + v * F::kLanes,
                 __builtin_convertvector(shifted, Vector<int8_t, F::kLanes>));
  }
}

// `n` elements; known to the compiler where the block is a whole one.
template <class F>
inline __attribute__((always_inline)) void narrow_int8_block_of(const float* from, char* to,
                                                                size_t n, float factor) {
  using V = typename F::V;
  V block[kInt8Block / F::kLanes] = {};
  __builtin_memcpy(block, from, n * sizeof(float));
  for (V& each : block) each = each * factor;
  float step;
  int8_t elements[kInt8Block];
  narrow_int8_block<F>(block, &step, elements);
  __builtin_memcpy(to, &step, sizeof(step));
  __builtin_memcpy(to + sizeof(step), elements, n);
}

template <class F>
inline __attribute__((always_inline)) void widen_int8_block_of(const char* from, float* to,
                                                               size_t n, float factor) {
  using V = typename F::V;
  // In two steps, which compilers turn into one instruction each.
  using Packed = Vector<int8_t, F::kLanes>;
  using Short = Vector<int16_t, F::kLanes>;
  using Int = Vector<int32_t, F::kLanes>;
  float step;
  __builtin_memcpy(&step, from, sizeof(step));
  const char* elements = from + sizeof(step);
  char padded[kInt8Block] = {};
  if (n < kInt8Block) {
    __builtin_memcpy(padded, elements, n);
    elements = padded;
  }
  V block[kInt8Block / F::kLanes];
  for (int v = 0; v < kInt8Block / F::kLanes; ++v) {
    const Short steps =
        __builtin_convertvector(load_vector<Packed>(elements + v * F::kLanes), Short);
    block[v] = __builtin_convertvector(__builtin_convertvector(steps, Int), V) * step * factor;
  }
  __builtin_memcpy(to, block, n * sizeof(float));
}

template <class F>
void narrow_int8_loop(const float* from, void* to, int64_t count, float factor) {
  auto* out = static_cast<char*>(to);
  int64_t i = 0;
  for (; i + kInt8Block <= count; i += kInt8Block) {
    narrow_int8_block_of<F>(from + i, out, kInt8Block, factor);
    out += sizeof(float) + kInt8Block;
  }
  if (i < count) narrow_int8_block_of<F>(from + i, out, static_cast<size_t>(count - i), factor);
}

template <class F>
void widen_int8_loop(const void* from, float* to, int64_t count, float factor) {
  const auto* in = static_cast<const char*>(from);
  int64_t i = 0;
  for (; i + kInt8Block <= count; i += kInt8Block) {
    widen_int8_block_of<F>(in, to + i, kInt8Block, factor);
    in += sizeof(float) + kInt8Block;
  }
  if (i < count) widen_int8_block_of<F>(in, to + i, static_cast<size_t>(count - i), factor);
}

}  // namespace
}  // namespace horon::ops
