#include "horon/torch_bindings/collectives/sparse_reduction.h"

#include <algorithm>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/pending_collective.h"
#include "horon/torch_bindings/tensors/finite.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {
namespace {

using core::concat;

// Not begun yet. What is wrong with it is for the caller to refuse, under both names.
std::shared_ptr<PendingCollective> gather(const std::string& name, const ProcessSet& set,
                                          const at::Tensor& rows, const std::string& remark) {
  const auto pending =
      std::make_shared<PendingCollective>(CollectiveKind::Allgather, "sparse_allreduce", name, set);
  pending->remark = remark;
  pending->concerns_others = false;
  pending->add_rows(rows);
  pending->concerns_others = true;
  return pending;
}

// The type in which values are added and scaled.
at::ScalarType sum_type(at::ScalarType dtype, bool scaled) {
  if (at::isReducedFloatingType(dtype)) return at::kFloat;
  if (dtype == at::kComplexHalf) return at::kComplexFloat;
  return scaled && at::isIntegralType(dtype, true) ? at::kLong : dtype;
}

}  // namespace

void check_sparse_allreduce(const at::Tensor& tensor, const std::string& name, ReduceOp op) {
  const auto refuse = [&name](const std::string& why) {
    throw Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": ", why));
  };
  if (!tensor.defined()) refuse("is undefined");
  if (tensor.layout() != at::kSparse) {
    refuse(concat(
        "has layout ", tensor.layout(),
        "; sparse_allreduce takes COO tensors: call to_sparse(), or allreduce() if it is dense"));
  }
  if (op != ReduceOp::Sum && op != ReduceOp::Average) {
    refuse(concat("is sparse, and sparse tensors have no ", to_string(op), "; use Sum or Average"));
  }
  if (tensor.scalar_type() == at::kBool) refuse("is bool, which has no sum; use another dtype");
  if (is_moved_only(tensor)) {
    refuse(concat("is ", tensor.scalar_type(),
                  ", which can be moved but not reduced; convert it to a reducible dtype"));
  }
  const at::Tensor values = real_view(tensor._values());
  check_tensor(values, name);
  if (ops::runtime().config().check_finite && values.is_floating_point() && !all_finite(values)) {
    throw not_finite(concat("tensor \"", name, "\""), values,
                     "HORON_CHECK_FINITE allows only finite values");
  }
}

void refuse_sparse_allreduce(const std::string& name, const ProcessSet& set, const Error& error) {
  refuse_calls({concat(name, SparseReduction::kIndices), concat(name, SparseReduction::kValues)},
               set, error);
}

at::Tensor index_rows(const at::Tensor& coalesced) {
  const at::Tensor indices = coalesced.indices();
  return at::cat({indices.new_zeros({1, indices.size(0)}), indices.t()});
}

SparseReduction::SparseReduction(const std::string& name, const ProcessSet& set,
                                 const at::Tensor& like, at::Tensor mine, int64_t sparse_dim,
                                 const std::string& remark)
    : sizes_(like.sizes().vec()) {
  try {
    at::Tensor indices, values;
    if (mine.defined() && mine.sparse_dim() != sparse_dim) {
      mine = mine.to_dense().to_sparse(sparse_dim).coalesce();
    }
    if (mine.defined()) {
      indices = index_rows(mine);
      values = mine.values().to(like.scalar_type());
    } else {
      const auto dense = like.options().layout(at::kStrided);
      indices = at::zeros({1, sparse_dim}, dense.dtype(at::kLong));
      std::vector<int64_t> shape(like.sizes().begin() + sparse_dim, like.sizes().end());
      shape.insert(shape.begin(), 0);
      values = at::empty(shape, dense);
    }
    indices_ = gather(concat(name, kIndices), set, indices, remark);
    values_ = gather(concat(name, kValues), set, values, remark);
  } catch (...) {  // LibTorch has no memory, say
    refuse_sparse_allreduce(name, set, core::current_error());
  }
  for (const auto& pending : {indices_, values_}) pending->submit(pending);
}

bool SparseReduction::finished() const {
  return indices_->state().finished() && values_->state().finished();
}

void SparseReduction::wait() const {
  indices_->state().wait(std::nullopt);
  values_->state().wait(std::nullopt);
}

void SparseReduction::wait(std::chrono::nanoseconds timeout) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  indices_->wait(timeout);
  // Not by the time of the end, which may be beyond what the clock can tell.
  values_->wait(std::max<std::chrono::nanoseconds>(std::chrono::nanoseconds(0),
                                                   timeout - (Clock::now() - begin)));
}

at::Tensor SparseReduction::result(ReduceOp op, double scale) const {
  return sum_of_rows(indices_->results().front(), indices_->received_rows().front(),
                     values_->results().front(), sizes_, op, scale);
}

at::Tensor sum_of_rows(const at::Tensor& indices, const std::vector<int64_t>& received,
                       const at::Tensor& values, at::IntArrayRef sizes, ReduceOp op, double scale) {
  std::vector<at::Tensor> entries;
  int64_t begin = 0;
  for (const int64_t count : received) {
    if (count > 0) entries.push_back(indices.slice(0, begin + 1, begin + count));
    begin += count;
  }
  const auto participants = static_cast<int64_t>(entries.size());
  const int64_t divisor = op == ReduceOp::Average ? participants : 1;
  const at::ScalarType dtype = values.scalar_type();
  const at::Tensor sum = at::_sparse_coo_tensor_unsafe(
                             at::cat(entries).t(), values.to(sum_type(dtype, divisor != 1)), sizes)
                             .coalesce();
  at::Tensor scaled = sum.values();
  if (!at::isIntegralType(dtype, true)) {
    const double factor = scale / static_cast<double>(divisor);
    if (factor != 1) scaled = scaled.mul(factor);
  } else if (divisor != 1) {
    scaled = at::div(scaled, divisor, "trunc");
  }
  return at::_sparse_coo_tensor_unsafe(sum.indices(), scaled.to(dtype), sizes, {}, true);
}

}  // namespace horon::torch_detail
