// What the ranks of a set must agree on before a collective can run.
//
// The unit of negotiation is the *entry*: one name with one or more tensors ("parts") that are
// ready, fail and complete together. A single user tensor is an entry with one part; a gradient
// bucket is an entry with one part per parameter.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "horon/core/base/dtype.h"

namespace horon {

// The order of these three is part of the wire format: append only.
enum class CollectiveKind : uint8_t { Allreduce, Broadcast, Allgather, Barrier };
inline constexpr int kCollectiveKindCount = 4;
enum class ReduceOp : uint8_t { Sum, Average, Min, Max, Product };
inline constexpr int kReduceOpCount = 5;
enum class DeviceKind : uint8_t { Host, Cuda };
inline constexpr int kDeviceKindCount = 2;

std::string_view to_string(CollectiveKind kind);
std::string_view to_string(ReduceOp op);
std::string_view to_string(DeviceKind device);

namespace core {

struct TensorPart {
  std::string name;
  std::vector<int64_t>
      shape;  // Allgather: the first dimension is each rank's own and is not compared

  bool operator==(const TensorPart&) const = default;
};

struct EntrySpec {
  CollectiveKind kind = CollectiveKind::Allreduce;
  DataType dtype = DataType::Float32;
  ReduceOp reduce_op = ReduceOp::Sum;
  DeviceKind device = DeviceKind::Host;
  int32_t root = 0;        // Broadcast
  double prescale = 1.0;   // floating types: applied to the inputs, in fp32 for 16-bit types
  double postscale = 1.0;  // floating types: applied to the result
  std::vector<TensorPart> parts;

  bool operator==(const EntrySpec&) const = default;
};

// Elements of one shape; a scalar (empty shape) has one.
int64_t element_count(const std::vector<int64_t>& shape);
// Elements of all parts together.
int64_t element_count(const EntrySpec& spec);

}  // namespace core
}  // namespace horon
