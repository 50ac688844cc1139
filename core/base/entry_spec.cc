#include "horon/core/base/entry_spec.h"

#include <array>

namespace horon {

std::string_view to_string(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKindCount> names = {
      "allreduce",     "broadcast", "allgather", "barrier",
      "reducescatter", "alltoall",  "gather",    "scatter"};
  return names.at(static_cast<size_t>(kind));
}

std::string_view to_string(ReduceOp op) {
  constexpr std::array<std::string_view, kReduceOpCount> names = {
      "Sum", "Average", "Min", "Max", "Product", "BitAnd", "BitOr", "BitXor", "Adasum"};
  return names.at(static_cast<size_t>(op));
}

std::string_view to_string(DeviceKind device) {
  constexpr std::array<std::string_view, kDeviceKindCount> names = {"host", "cuda"};
  return names.at(static_cast<size_t>(device));
}

std::string_view to_string(Compression compression) {
  constexpr std::array<std::string_view, kCompressionCount> names = {"none", "float16", "bfloat16",
                                                                     "int8"};
  return names.at(static_cast<size_t>(compression));
}

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::BitAnd || op == ReduceOp::BitOr || op == ReduceOp::BitXor;
}

std::string_view why_no_reduction(DataType dtype, ReduceOp op) {
  if (dtype == DataType::Bool && op == ReduceOp::Average) {
    return "an average of bool is not defined; use Max (any), Min (all) or a float dtype";
  }
  if (is_floating(dtype) && is_bitwise(op)) {
    return "BitAnd, BitOr and BitXor are for integers and bool; view the bits as an integer dtype";
  }
  if (!is_floating(dtype) && op == ReduceOp::Adasum) {
    return "Adasum is for floating dtypes; use Sum, or convert the tensor";
  }
  return "";
}

namespace core {

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::Allreduce || kind == CollectiveKind::Reducescatter;
}

bool has_root(CollectiveKind kind) {
  return kind == CollectiveKind::Broadcast || kind == CollectiveKind::Gather ||
         kind == CollectiveKind::Scatter;
}

bool has_own_rows(CollectiveKind kind) {
  return kind == CollectiveKind::Allgather || kind == CollectiveKind::Alltoall ||
         kind == CollectiveKind::Gather || kind == CollectiveKind::Scatter;
}

size_t extents_of_part(const EntrySpec& spec, bool is_root, int size) {
  switch (spec.kind) {
    case CollectiveKind::Allgather:
    case CollectiveKind::Gather:
      return 1;
    case CollectiveKind::Alltoall:
      return static_cast<size_t>(size);
    case CollectiveKind::Scatter:
      return is_root ? static_cast<size_t>(size) : 0;
    default:
      return 0;
  }
}

int64_t row_elements(const std::vector<int64_t>& shape) {
  return element_count({shape.begin() + (shape.empty() ? 0 : 1), shape.end()});
}

std::vector<int64_t> even_splits(int64_t rows, int size) {
  std::vector<int64_t> splits(static_cast<size_t>(size), rows / size);
  for (int64_t member = 0; member < rows % size; ++member) ++splits[static_cast<size_t>(member)];
  return splits;
}

bool countable(const EntrySpec& spec) {
  int64_t bytes = 0;
  for (const TensorPart& part : spec.parts) {
    // An extent of 0 counts as 1: products of the extents must not overflow in any order.
    auto part_bytes = static_cast<int64_t>(size_of(spec.dtype));
    for (const int64_t extent : part.shape) {
      if (extent < 0) return false;
      if (__builtin_mul_overflow(part_bytes, std::max<int64_t>(extent, 1), &part_bytes)) {
        return false;
      }
    }
    if (__builtin_add_overflow(bytes, part_bytes, &bytes)) return false;
  }
  return true;
}

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

int64_t element_count(const EntrySpec& spec) {
  int64_t count = 0;
  for (const TensorPart& part : spec.parts) count += element_count(part.shape);
  return count;
}

}  // namespace core
}  // namespace horon
