// The element types of collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace horon {

// The order is part of the wire format: add new types at the end.
enum class DataType : uint8_t {
  Float32,
  Float64,
  Float16,
  BFloat16,
  Int8,
  UInt8,
  Int16,
  Int32,
  Int64,
  Bool,  // one byte, 0 or 1
};
inline constexpr int kDataTypeCount = 10;

// Bytes of one element.
size_t size_of(DataType dtype);
// "float32", "bfloat16", ...
std::string_view to_string(DataType dtype);
bool is_floating(DataType dtype);

}  // namespace horon
