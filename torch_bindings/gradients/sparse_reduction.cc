#include "horon/torch_bindings/gradients/sparse_reduction.h"

#include <cstring>
#include <utility>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/step_agreement.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {

SparseReduction::SparseReduction(const std::string& name, uint32_t set, const at::Tensor& like,
                                 at::Tensor mine, int64_t sparse_dim)
    : sizes_(like.sizes().vec()),
      indices_(std::make_shared<Gathered>()),
      values_(std::make_shared<Gathered>()) {
  if (mine.defined() && mine.sparse_dim() != sparse_dim) {
    mine = mine.to_dense().to_sparse(sparse_dim);
  }
  if (mine.defined()) {
    indices_->input = mine.indices().t().contiguous();
    values_->input = mine.values().to(like.scalar_type()).contiguous();
  } else {
    std::vector<int64_t> shape(like.sizes().begin() + sparse_dim, like.sizes().end());
    shape.insert(shape.begin(), 0);
    indices_->input = at::empty({0, sparse_dim}, at::TensorOptions().dtype(at::kLong));
    values_->input = at::empty(shape, like.options());
  }
  indices_handle_ = gather(core::concat(name, kIndices), set, indices_);
  values_handle_ = gather(core::concat(name, kValues), set, values_);
}

std::shared_ptr<core::HandleState> SparseReduction::gather(
    const std::string& name, uint32_t set, const std::shared_ptr<Gathered>& memory) const {
  core::Submission submission;
  submission.set = set;
  submission.name = name;
  submission.spec =
      std::make_shared<core::EntrySpec>(make_spec(CollectiveKind::Allgather, memory->input, name));
  submission.memory = {make_part(memory->input, at::Tensor())};
  const size_t element_bytes = memory->input.element_size();
  submission.allocate_output = [memory, element_bytes](size_t, int64_t elements) {
    memory->rows.resize(static_cast<size_t>(elements) * element_bytes);
    return memory->rows.data();
  };
  submission.keep_alive = memory;
  return core::runtime().submit(std::move(submission));
}

void SparseReduction::wait() const {
  indices_handle_->wait(std::nullopt);
  values_handle_->wait(std::nullopt);
}

at::Tensor SparseReduction::rows_of(const Gathered& memory, int64_t rows) const {
  std::vector<int64_t> shape = memory.input.sizes().vec();
  shape[0] = rows;
  at::Tensor all = at::empty(shape, memory.input.options());
  if (!memory.rows.empty()) {
    std::memcpy(all.mutable_data_ptr(), memory.rows.data(), memory.rows.size());
  }
  return all;
}

at::Tensor SparseReduction::result(double scale) const {
  (void)indices_handle_->get();
  (void)values_handle_->get();
  const auto row_bytes = static_cast<size_t>(indices_->input.size(1)) * sizeof(int64_t);
  const auto rows = static_cast<int64_t>(indices_->rows.size() / row_bytes);
  const at::Tensor indices = rows_of(*indices_, rows).t();
  at::Tensor values = rows_of(*values_, rows);
  const at::ScalarType dtype = values.scalar_type();
  if (values.element_size() < 4) values = values.to(at::kFloat);
  at::Tensor sum = at::_sparse_coo_tensor_unsafe(indices, values, sizes_).coalesce();
  if (scale != 1) sum = sum.mul(scale);
  return sum.to(dtype).coalesce();
}

}  // namespace horon::torch_detail
