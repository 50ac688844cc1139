#include "horon/torch_bindings/collectives/sparse_reduction.h"

#include <algorithm>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/pending_collective.h"

namespace horon::torch_detail {
namespace {

std::shared_ptr<PendingCollective> gather(const std::string& name, const ProcessSet& set,
                                          const at::Tensor& rows, const std::string& remark) {
  const auto pending =
      std::make_shared<PendingCollective>(CollectiveKind::Allgather, "sparse_allreduce", name, set);
  pending->remark = remark;
  pending->add_rows(rows);
  pending->submit(pending);
  return pending;
}

// The type in which values are added and scaled.
at::ScalarType sum_type(at::ScalarType dtype, bool scaled) {
  if (at::isReducedFloatingType(dtype)) return at::kFloat;
  if (dtype == at::kComplexHalf) return at::kComplexFloat;
  return scaled && at::isIntegralType(dtype, true) ? at::kLong : dtype;
}

}  // namespace

// The indices of each rank have a row of zeros before them. So a rank without any entry is told
// from one that has joined and takes no part.
SparseReduction::SparseReduction(const std::string& name, const ProcessSet& set,
                                 const at::Tensor& like, at::Tensor mine, int64_t sparse_dim,
                                 const std::string& remark)
    : sizes_(like.sizes().vec()) {
  if (mine.defined() && mine.sparse_dim() != sparse_dim) {
    mine = mine.to_dense().to_sparse(sparse_dim).coalesce();
  }
  const auto dense = like.options().layout(at::kStrided);
  at::Tensor indices = at::zeros({1, sparse_dim}, dense.dtype(at::kLong));
  at::Tensor values;
  if (mine.defined()) {
    indices = at::cat({indices, mine.indices().t()});
    values = mine.values().to(like.scalar_type());
  } else {
    std::vector<int64_t> shape(like.sizes().begin() + sparse_dim, like.sizes().end());
    shape.insert(shape.begin(), 0);
    values = at::empty(shape, dense);
  }
  indices_ = gather(core::concat(name, kIndices), set, indices, remark);
  values_ = gather(core::concat(name, kValues), set, values, remark);
}

bool SparseReduction::finished() const {
  return indices_->state().finished() && values_->state().finished();
}

void SparseReduction::wait() const {
  indices_->state().wait(std::nullopt);
  values_->state().wait(std::nullopt);
}

void SparseReduction::wait(std::chrono::nanoseconds timeout) const {
  const auto end = std::chrono::steady_clock::now() + timeout;
  indices_->wait(timeout);
  values_->wait(std::max(std::chrono::nanoseconds(0),
                         std::chrono::nanoseconds(end - std::chrono::steady_clock::now())));
}

at::Tensor SparseReduction::result(ReduceOp op, double scale) const {
  const at::Tensor& rows = indices_->results().front();
  const at::Tensor& values = values_->results().front();
  std::vector<at::Tensor> indices;
  int64_t begin = 0;
  const std::vector<int64_t> received = indices_->received_rows().front();
  for (const int64_t count : received) {
    if (count > 0) indices.push_back(rows.slice(0, begin + 1, begin + count));
    begin += count;
  }
  const auto participants = static_cast<int64_t>(indices.size());
  const int64_t divisor = op == ReduceOp::Average ? participants : 1;
  const at::ScalarType dtype = values.scalar_type();
  const at::Tensor sum = at::_sparse_coo_tensor_unsafe(
                             at::cat(indices).t(), values.to(sum_type(dtype, divisor != 1)), sizes_)
                             .coalesce();
  at::Tensor scaled = sum.values();
  if (!at::isIntegralType(dtype, true)) {
    const double factor = scale / static_cast<double>(divisor);
    if (factor != 1) scaled = scaled.mul(factor);
  } else if (divisor != 1) {
    scaled = at::div(scaled, divisor, "trunc");
  }
  return at::_sparse_coo_tensor_unsafe(sum.indices(), scaled.to(dtype), sizes_, {}, true);
}

}  // namespace horon::torch_detail
