// The sum or average of sparse tensors: every rank gets the rows of all ranks, and adds those with
// equal indices. For sparse_allreduce() and for gradients that stay sparse.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"
#include "horon/core/base/error.h"
#include "horon/ops/session/process_set.h"

namespace horon::torch_detail {

class PendingCollective;

// Throws Error(InvalidArgument) that begins with the name, if sparse_allreduce() does not take the
// tensor or the op.
void check_sparse_allreduce(const at::Tensor& tensor, const std::string& name, ReduceOp op);

// Makes both collectives of SparseReduction fail on the other ranks, which would wait for this one
// otherwise, and throws `error` here.
[[noreturn]] void refuse_sparse_allreduce(const std::string& name, const ProcessSet& set,
                                          const Error& error);

// The entries of a coalesced sparse tensor as rows that travel. The indices of each rank have a row
// of zeros before them: so a rank without any entry is told from one that has joined and takes no
// part.
at::Tensor index_rows(const at::Tensor& coalesced);

// The coalesced sum, of this shape, of the entries of all ranks, times `scale`. `received`: how
// many rows of `indices` came from each rank. As SparseReduction::result().
at::Tensor sum_of_rows(const at::Tensor& indices, const std::vector<int64_t>& received,
                       const at::Tensor& values, at::IntArrayRef sizes, ReduceOp op,
                       double scale = 1);

class SparseReduction {
 public:
  // What the names of its two collectives end in.
  static constexpr std::string_view kIndices = ".indices", kValues = ".values";

  // `like` has the shape and dtype of the tensor; `mine` is this rank's, coalesced or undefined;
  // `sparse_dim` is the same on all ranks. `remark` is compared beside the names. Starts two
  // allgathers. Throws Error; the other ranks learn of it.
  SparseReduction(const std::string& name, const ProcessSet& set, const at::Tensor& like,
                  at::Tensor mine, int64_t sparse_dim, const std::string& remark = {});

  bool finished() const;
  void wait() const;
  // Throws Error(Timeout) when the time is over.
  void wait(std::chrono::nanoseconds timeout) const;
  // After wait(): the coalesced sum times `scale`; for Average divided by the ranks that took part
  // (those that have not joined). 16-bit floating types are summed and scaled in float32; averages
  // of integers are rounded toward zero. Throws Error.
  at::Tensor result(ReduceOp op, double scale = 1) const;

 private:
  std::vector<int64_t> sizes_;
  std::shared_ptr<PendingCollective> indices_, values_;
};

}  // namespace horon::torch_detail
