// What a rank without data puts into a reduction so that it changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::core {

// Writes `memory` full of the neutral element of the op: 0 for Sum and Average, 1 for Product, the
// largest value (+inf) for Min, the smallest (-inf) for Max. memory.size() is a multiple of the
// element size.
void fill_neutral(std::span<std::byte> memory, DataType dtype, ReduceOp op);

}  // namespace horon::core
