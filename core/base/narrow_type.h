// The types of 16 bits in which float32 tensors travel.
#pragma once

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::core {

constexpr bool is_16_bit_float(DataType dtype) {
  return dtype == DataType::Float16 || dtype == DataType::BFloat16;
}

// Of any compression but None.
constexpr DataType narrow_type(Compression compression) {
  return compression == Compression::Float16 ? DataType::Float16 : DataType::BFloat16;
}

// The type in which the entry's elements travel.
inline DataType type_in_batch(const EntrySpec& spec) {
  return spec.compression == Compression::None ? spec.dtype : narrow_type(spec.compression);
}

}  // namespace horon::core
