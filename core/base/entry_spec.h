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

// The order of these is part of the wire format: add new values at the end.
enum class CollectiveKind : uint8_t {
  Allreduce,
  Broadcast,
  Allgather,
  Barrier,
  Reducescatter,
  Alltoall,
  Gather,
  Scatter,
};
inline constexpr int kCollectiveKindCount = 8;
// The bitwise ones are for integers and bool. Adasum is for an allreduce of floating types: a sum
// of each tensor that adds what is orthogonal and takes the mean of what is parallel
// (ops/adasum/adasum_kernels.h).
enum class ReduceOp : uint8_t { Sum, Average, Min, Max, Product, BitAnd, BitOr, BitXor, Adasum };
inline constexpr int kReduceOpCount = 9;
enum class DeviceKind : uint8_t { Host, Cuda };
inline constexpr int kDeviceKindCount = 2;
// The type in which float32 travels between the ranks; the sum is made in float32. Int8 only
// applies to Horon's own messages between hosts, in blocks of 64 elements with one factor each;
// within a host and over NCCL it acts as None. The 16-bit types apply to every path.
enum class Compression : uint8_t { None, Float16, BFloat16, Int8 };
inline constexpr int kCompressionCount = 4;

std::string_view to_string(CollectiveKind kind);
std::string_view to_string(ReduceOp op);
std::string_view to_string(DeviceKind device);
std::string_view to_string(Compression compression);

// BitAnd, BitOr and BitXor.
bool is_bitwise(ReduceOp op);
// Why this type has no such reduction, and what to use instead; empty if it has. NCCL has fewer.
std::string_view why_no_reduction(DataType dtype, ReduceOp op);

namespace core {

struct TensorPart {
  std::string name;
  std::vector<int64_t> shape;  // has_own_rows(): the first dimension may differ between ranks

  bool operator==(const TensorPart&) const = default;
};

struct EntrySpec {
  CollectiveKind kind = CollectiveKind::Allreduce;
  DataType dtype = DataType::Float32;
  ReduceOp reduce_op = ReduceOp::Sum;
  DeviceKind device = DeviceKind::Host;
  int32_t root = 0;        // Broadcast, Gather, Scatter: a rank of the world, also in a process set
  double prescale = 1.0;   // floating types: applied to the inputs, in fp32 for 16-bit types
  double postscale = 1.0;  // floating types: applied to the result
  Compression compression = Compression::None;  // Allreduce of float32
  // Allreduce: the length of the pieces in which the op works, in bytes of what it reduces; the op
  // keeps within its own limits. The result has the same bits for any length. 0: the op chooses.
  int64_t piece_bytes = 0;
  // Devices only. The streams are being captured into a CUDA graph: the collective does not run
  // now, but at each launch of the graph. Every member must launch it equally often.
  bool captured = false;
  // Reducescatter: rows that each member gets, in the order of members. Empty: equal shares, and
  // the first members get one row more if they do not divide evenly.
  std::vector<int64_t> splits;
  // Reducescatter: the parts lie one behind the other in memory and are divided as one tensor,
  // whose elements `splits` counts. (A gradient bucket is divided so; there each member gets whole
  // parts.)
  bool as_one = false;
  std::vector<TensorPart> parts;

  bool operator==(const EntrySpec&) const = default;
};

// True for Allreduce and Reducescatter.
bool reduces(CollectiveKind kind);
// True for Broadcast, Gather and Scatter.
bool has_root(CollectiveKind kind);
// True for Allgather, Alltoall, Gather and Scatter: the first dimension counts the rows of this
// rank, and may differ between ranks.
bool has_own_rows(CollectiveKind kind);
// How many numbers a member sends about its rows of one part. Allgather and Gather: one, the rows
// that it has. Alltoall and the root of Scatter: `size`, the rows for each member.
size_t extents_of_part(const EntrySpec& spec, bool is_root, int size);

// Elements of one row of a tensor whose first dimension counts rows.
int64_t row_elements(const std::vector<int64_t>& shape);
// Divides `rows` evenly over `size` members; the first `rows` % `size` members get one more each.
std::vector<int64_t> even_splits(int64_t rows, int size);

// The elements of one shape. A scalar (empty shape) has one element.
int64_t element_count(const std::vector<int64_t>& shape);
// The elements of all parts together.
int64_t element_count(const EntrySpec& spec);
// Whether the bytes of all parts together fit into an int64_t, and no extent is negative.
bool countable(const EntrySpec& spec);

}  // namespace core
}  // namespace horon
