// Data for collectives whose results are compared bit by bit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::gpu_session {

using Bytes = std::vector<std::byte>;

// Floating point: numbers between -1 and 1. Bools: 0 or 1. Other integers: any bits.
inline Bytes random_elements(DataType dtype, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes out(count * size_of(dtype));
  if (!is_floating(dtype)) {
    const uint32_t mask = dtype == DataType::Bool ? 0x01010101 : 0xffffffff;
    for (size_t i = 0; i < out.size(); i += sizeof(mask)) {
      const uint32_t bits = static_cast<uint32_t>(random()) & mask;
      std::memcpy(&out[i], &bits, std::min(sizeof(bits), out.size() - i));
    }
    return out;
  }
  // Not by std::uniform_real_distribution, whose logarithms took three quarters of the tests' time.
  constexpr float kScale = 1.0F / (1U << 31);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(random()))) * kScale;
  }
  if (dtype == DataType::Float64) {
    auto* const to = reinterpret_cast<double*>(out.data());
    for (size_t i = 0; i < count; ++i) to[i] = values[i] / 3.0;
  } else if (dtype == DataType::Float32) {
    std::copy_n(reinterpret_cast<const std::byte*>(values.data()), out.size(), out.begin());
  } else {
    ops::narrow(dtype, values.data(), out.data(), static_cast<int64_t>(count), 1.0);
  }
  return out;
}

}  // namespace horon::gpu_session
