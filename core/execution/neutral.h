// What a rank without data puts into a reduction so that it changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::core {

// The neutral element of the op, repeated to fill eight bytes: 0 for Sum, Average, BitOr and
// BitXor, 1 for Product, all bits for BitAnd (true of bool), the largest value (+inf) for Min, the
// smallest (-inf) for Max.
uint64_t neutral_pattern(DataType dtype, ReduceOp op);

// Writes the pattern over and over; the last time it may be cut.
void fill(std::span<std::byte> memory, uint64_t pattern);

}  // namespace horon::core
