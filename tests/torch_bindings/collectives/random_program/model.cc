#include "horon/tests/torch_bindings/collectives/random_program/model.h"

#include <ATen/ATen.h>

#include "horon/tests/support/adasum_order.h"

namespace horon::random_program {
namespace {

// Wide enough for every sum and product.
at::ScalarType wide(at::ScalarType type) {
  if (at::isComplexType(type)) return at::kComplexDouble;
  return at::isIntegralType(type, true) ? at::kLong : at::kDouble;
}

at::Tensor adasum(const at::Tensor& a, const at::Tensor& b) {
  const double ab = (a * b).sum().item<double>();
  const double aa = (a * a).sum().item<double>();
  const double bb = (b * b).sum().item<double>();
  return (aa == 0 ? 1 : 1 - ab / (2 * aa)) * a + (bb == 0 ? 1 : 1 - ab / (2 * bb)) * b;
}

at::Tensor reduced(const Call& call, size_t part) {
  std::vector<at::Tensor> inputs;
  for (const int r : call.ranks) {
    const at::Tensor in = input(call, part, r).to(wide(call.dtype));
    inputs.push_back(call.prescale == 1 ? in : in * call.prescale);
  }
  const at::Tensor all = at::stack(inputs);
  const auto members = static_cast<double>(call.ranks.size());
  at::Tensor result;
  switch (call.op) {
    case ReduceOp::Sum:
      result = all.sum(0);
      break;
    case ReduceOp::Average:
      result = at::isIntegralType(call.dtype, true) ? (all.sum(0).to(at::kDouble) / members).trunc()
                                                    : all.sum(0) / members;
      break;
    case ReduceOp::Min:
      result = all.amin(0);
      break;
    case ReduceOp::Max:
      result = all.amax(0);
      break;
    case ReduceOp::Product:
      result = all.prod(0);
      break;
    case ReduceOp::BitAnd:
    case ReduceOp::BitOr:
    case ReduceOp::BitXor:
      result = inputs.front();
      for (size_t i = 1; i < inputs.size(); ++i) {
        const at::Tensor& other = inputs[i];
        if (call.op == ReduceOp::BitAnd) result = result.bitwise_and(other);
        if (call.op == ReduceOp::BitOr) result = result.bitwise_or(other);
        if (call.op == ReduceOp::BitXor) result = result.bitwise_xor(other);
      }
      break;
    case ReduceOp::Adasum:
      result = test::combined_as_by_adasum(inputs, adasum);
      break;
  }
  if (call.dtype == at::kBool) return result.ne(0);
  return (call.postscale == 1 ? result : result * call.postscale).to(call.dtype);
}

int64_t sum_before(const std::vector<int64_t>& splits, size_t member) {
  int64_t sum = 0;
  for (size_t m = 0; m < member; ++m) sum += splits[m];
  return sum;
}

at::Tensor piece(const at::Tensor& rows, const std::vector<int64_t>& splits, size_t member) {
  const int64_t begin = sum_before(splits, member);
  return rows.slice(0, begin, begin + splits[member]);
}

at::Tensor gathered(const Call& call, size_t part) {
  std::vector<at::Tensor> rows;
  for (const int r : call.ranks) {
    const at::Tensor in = input(call, part, r);
    rows.push_back(in.dim() == 0 ? in.reshape({1}) : in);
  }
  return at::cat(rows);
}

at::Tensor exchanged(const Call& call, size_t part, size_t me) {
  std::vector<at::Tensor> rows;
  for (size_t m = 0; m < call.ranks.size(); ++m) {
    rows.push_back(piece(input(call, part, call.ranks[m]), call.matrix[m], me));
  }
  return at::cat(rows);
}

at::Tensor expected_part(const Call& call, size_t part, int rank) {
  const size_t me = call.member(rank);
  switch (call.kind) {
    case CollectiveKind::Allreduce:
      return reduced(call, part);
    case CollectiveKind::Broadcast:
      return input(call, part, call.root);
    case CollectiveKind::Allgather:
      return gathered(call, part);
    case CollectiveKind::Gather: {
      const at::Tensor rows = gathered(call, part);
      return rank == call.root ? rows : rows.slice(0, 0, 0);
    }
    case CollectiveKind::Reducescatter:
      return piece(reduced(call, part), call.splits, me);
    case CollectiveKind::Scatter:
      return piece(input(call, part, call.root), call.splits, me);
    default:
      return exchanged(call, part, me);
  }
}

}  // namespace

at::Tensor input(const Call& call, size_t part, int rank) {
  const std::vector<int64_t> shape = call.shape(part, rank);
  const int64_t salt = 3 * rank + 11 * call.id + 2 * static_cast<int64_t>(part);
  const at::Tensor pattern =
      (at::arange(c10::multiply_integers(shape), at::kLong) * 5 + salt).remainder(7).reshape(shape);
  if (call.dtype == at::kBool) return pattern.gt(2);
  const at::Tensor real = call.dtype == at::kByte ? pattern : pattern - 3;
  if (!at::isComplexType(call.dtype)) return real.to(call.dtype);
  return at::complex(real.to(at::kDouble), (pattern - 1).to(at::kDouble)).to(call.dtype);
}

std::vector<at::Tensor> expected(const Call& call, int rank) {
  std::vector<at::Tensor> results;
  for (size_t part = 0; part < call.shapes.size(); ++part) {
    results.push_back(expected_part(call, part, rank));
  }
  return results;
}

std::vector<int64_t> expected_splits(const Call& call, int rank) {
  const size_t me = call.member(rank);
  std::vector<int64_t> splits;
  for (size_t m = 0; m < call.ranks.size(); ++m) {
    if (call.kind == CollectiveKind::Alltoall) splits.push_back(call.matrix[m][me]);
    if (call.kind == CollectiveKind::Allgather) {
      splits.push_back(call.scalar ? 1 : call.own_rows[m]);
    }
  }
  return splits;
}

bool agrees(const Call& call, const at::Tensor& got, const at::Tensor& want) {
  if (got.scalar_type() != want.scalar_type() || got.sizes() != want.sizes()) return false;
  const bool adasum = call.op == ReduceOp::Adasum;
  const bool rounded = core::reduces(call.kind) && (call.op == ReduceOp::Average || adasum) &&
                       !at::isIntegralType(call.dtype, true);
  if (!rounded) return at::equal(got, want);
  const bool half = call.dtype == at::kHalf || call.dtype == at::kBFloat16;
  // Adasum rounds after each two ranks.
  const double tolerance = (half ? 1e-2 : 1e-6) * (adasum ? 5 : 1);
  return at::allclose(got, want, tolerance, tolerance);
}

}  // namespace horon::random_program
