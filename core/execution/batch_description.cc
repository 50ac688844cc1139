#include "horon/core/execution/batch_description.h"

#include <cmath>
#include <utility>

#include "horon/core/base/narrow_type.h"
#include "horon/core/execution/block_layout.h"

namespace horon::core {
namespace {

// Once a rank has joined, its neutral elements must not be scaled: only zero stays neutral under a
// scale. So the scale of the inputs is applied to the result instead: p * min(x) = min(p * x), and
// for p < 0 the largest x gives the smallest p * x.
void move_prescale_to_result(Batch& batch, int contributors) {
  const double prescale = std::exchange(batch.prescale, 1.0);
  switch (batch.reduce_op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
    case ReduceOp::Adasum:
      batch.prescale = prescale;
      return;
    case ReduceOp::Product:
      batch.postscale *= std::pow(prescale, contributors);
      return;
    case ReduceOp::Min:
    case ReduceOp::Max:
      batch.postscale *= prescale;
      if (prescale >= 0) return;
      batch.reduce_op = batch.reduce_op == ReduceOp::Min ? ReduceOp::Max : ReduceOp::Min;
      return;
    case ReduceOp::BitAnd:
    case ReduceOp::BitOr:
    case ReduceOp::BitXor:
      return;  // of integers, which have no scale
  }
}

}  // namespace

Batch describe_batch(const EntrySpec& spec, int contributors, std::span<const int> ranks) {
  Batch batch;
  batch.kind = spec.kind;
  batch.dtype = type_in_batch(spec);
  batch.reduce_op = spec.reduce_op;
  batch.device = spec.device;
  batch.root = index_of(spec.root, ranks);
  // With 16-bit compression the scales are applied when packing and unpacking, in float32.
  if (!is_16_bit(spec.compression)) {
    batch.prescale = spec.prescale;
    batch.postscale = spec.postscale;
  }
  batch.int8_between_hosts = spec.compression == Compression::Int8;
  batch.piece_bytes = spec.piece_bytes;
  batch.captured = spec.captured;
  if (spec.reduce_op == ReduceOp::Average) batch.divisor = contributors;
  if (contributors < static_cast<int>(ranks.size())) move_prescale_to_result(batch, contributors);
  return batch;
}

}  // namespace horon::core
