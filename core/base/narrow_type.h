// The types of 16 bits in which float32 tensors travel.
#pragma once

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::core {

constexpr bool is_16_bit_float(DataType dtype) {
  return dtype == DataType::Float16 || dtype == DataType::BFloat16;
}

// Whether the elements have 16 bits already when the collective gets them.
constexpr bool is_16_bit(Compression compression) {
  return compression == Compression::Float16 || compression == Compression::BFloat16;
}

// `compression`: one for which is_16_bit() holds.
constexpr DataType narrow_type(Compression compression) {
  return compression == Compression::Float16 ? DataType::Float16 : DataType::BFloat16;
}

// The type of the entry's elements in its batch.
inline DataType type_in_batch(const EntrySpec& spec) {
  return is_16_bit(spec.compression) ? narrow_type(spec.compression) : spec.dtype;
}

}  // namespace horon::core
