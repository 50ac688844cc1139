#include "horon/torch_bindings/collectives/sparse_allreduce.h"

#include <mutex>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/names_in_flight.h"
#include "horon/torch_bindings/collectives/sparse_reduction.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon {
namespace torch_detail {

class PendingSparse {
 public:
  PendingSparse(SparseReduction started, ReduceOp op) : reduction(std::move(started)), op_(op) {}

  const SparseReduction reduction;

  // After reduction.wait().
  at::Tensor result() {
    std::call_once(settled_, [this] {
      const PlainMode plain;
      result_ = reduction.result(op_);
    });
    return result_;
  }

 private:
  const ReduceOp op_;
  std::once_flag settled_;
  at::Tensor result_;
};

}  // namespace torch_detail

namespace {

using core::concat;

torch_detail::PendingSparse& checked(const std::shared_ptr<torch_detail::PendingSparse>& pending) {
  if (!pending)
    throw Error(ErrorCode::InvalidArgument,
                "this handle is empty; use one that an async call returned");
  return *pending;
}

}  // namespace

SparseHandle::SparseHandle(std::shared_ptr<torch_detail::PendingSparse> pending)
    : pending_(std::move(pending)) {}

bool SparseHandle::poll() const { return checked(pending_).reduction.finished(); }

at::Tensor SparseHandle::wait() const {
  checked(pending_).reduction.wait();
  return pending_->result();
}

at::Tensor SparseHandle::wait(std::chrono::nanoseconds timeout) const {
  checked(pending_).reduction.wait(timeout);
  return pending_->result();
}

at::Tensor sparse_allreduce(const at::Tensor& tensor, const SparseAllreduceOptions& options) {
  return sparse_allreduce_async(tensor, options).wait();
}

SparseHandle sparse_allreduce_async(const at::Tensor& tensor,
                                    const SparseAllreduceOptions& options) {
  using torch_detail::SparseReduction;
  const torch_detail::PlainMode plain;
  const ProcessSet& set = options.process_set;
  const std::string name =
      torch_detail::given_or_counted(options.name, "sparse_allreduce", set.id());
  if (options.name.empty()) {  // the numbers repeat
    for (const std::string_view part : {SparseReduction::kIndices, SparseReduction::kValues}) {
      torch_detail::names_in_flight().wait_until_free(set.id(), concat(name, part));
    }
  }
  at::Tensor mine;
  try {
    torch_detail::check_sparse_allreduce(tensor, name, options.op);
    mine = tensor.detach().coalesce();
  } catch (...) {  // LibTorch's own errors too
    torch_detail::refuse_sparse_allreduce(name, set, core::current_error());
  }
  SparseReduction reduction(
      name, set, mine, mine, mine.sparse_dim(),
      concat(to_string(options.op), " of sparse ", core::shape_text(mine.sizes())));
  return SparseHandle(
      std::make_shared<torch_detail::PendingSparse>(std::move(reduction), options.op));
}

}  // namespace horon
