// How a reduction travels between hosts. Pure functions of facts that all ranks share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::ops {

// Reductions of at most so many bytes of float32 are never rounded for the wire: half as many bytes
// would hardly arrive sooner, and the numbers that a program counts or prints are that short.
inline constexpr int64_t kExactBytesMax = 4 << 10;
bool is_exact(int64_t count);  // so many elements of float32

// Elements as they are, or float32 as blocks of int8 (host_kernels.h). What travels in one message
// begins with a block, so it is cut at multiples of kAlignment elements.
class WireType {
 public:
  static constexpr int64_t kAlignment = 64;

  constexpr WireType() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): most types of elements travel as they are
  constexpr WireType(DataType dtype) : dtype_(dtype) {}
  static constexpr WireType int8_blocks() {
    WireType type;
    type.in_blocks_ = true;
    return type;
  }

  // The bytes of so many elements, with which the batch may end. Also the place of an element
  // behind so many, if that is a multiple of kAlignment.
  int64_t bytes(int64_t elements) const;
  // How many elements fit into so many bytes; in blocks a multiple of kAlignment.
  int64_t elements_in(int64_t bytes) const;
  // "bfloat16", "int8 blocks".
  std::string_view name() const;

  // True if elements of `dtype` are rounded to travel: float32 in 16 bits or in blocks. Everything
  // else travels as it is, or in a longer type.
  bool narrows(DataType dtype) const;
  // The type of elements that are not in blocks.
  DataType dtype() const { return dtype_; }
  // Float32 to this type and back, multiplied by `factor`. 16 bits or blocks only.
  void narrow(const float* from, std::byte* to, int64_t count, double factor) const;
  void widen(const std::byte* from, float* to, int64_t count) const;

  bool operator==(const WireType&) const = default;

 private:
  DataType dtype_ = DataType::Float32;
  bool in_blocks_ = false;
};

// HORON_WIRE_DTYPE: "float32", "bfloat16" or "float16".
WireType wire_type_named(std::string_view name);

// In which type `count` elements travel. `raw`: each host has one rank, whose input could travel as
// it is. `allowed`: Float32, or the type in which sums and averages of float32 may travel.
WireType choose_wire_type(DataType dtype, ReduceOp op, int64_t count, bool raw, WireType allowed);

}  // namespace horon::ops
