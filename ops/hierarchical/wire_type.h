// The type in which a reduction travels between hosts. Pure functions of facts that all ranks
// share.
#pragma once

#include <cstdint>
#include <string_view>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::ops {

// Reductions of at most so many bytes of float32 are never rounded for the wire: half as many bytes
// would hardly arrive sooner, and the numbers that a program counts or prints are that short.
inline constexpr int64_t kExactBytesMax = 4 << 10;
bool is_exact(int64_t count);  // so many elements of float32

// HORON_WIRE_DTYPE: "float32", "bfloat16" or "float16".
DataType wire_dtype_named(std::string_view name);

// Float32 that travels in 16 bits. Everything else travels as it is, or in a longer type.
bool is_narrowed(DataType dtype, DataType wire_type);

// What the wire carries of `count` elements. `raw`: each host has one rank, whose input could
// travel as it is. `wire_dtype`: Float32, or the 16 bits in which sums and averages of float32 are
// allowed to travel.
DataType choose_wire_type(DataType dtype, ReduceOp op, int64_t count, bool raw,
                          DataType wire_dtype);

}  // namespace horon::ops
