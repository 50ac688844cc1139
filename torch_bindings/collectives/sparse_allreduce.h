// Allreduce of sparse tensors: the gradient of an embedding, of which each rank has some rows.
//
//   at::Tensor sum = horon::sparse_allreduce(gradient, {.op = horon::ReduceOp::Sum});
//   horon::SparseHandle h = horon::sparse_allreduce_async(gradient, {.name = "table"});
//
// Tensors: layout COO, coalesced or not, in host memory, of the dtypes that collectives.h names,
// except bool. Shape, dtype, number of sparse dimensions and op are the same on all ranks; the
// entries may differ, and a rank may have none. Two allgathers bring the indices and values of all
// ranks to all ranks, so this pays where the entries of all ranks together are far fewer than the
// elements of the dense tensor. A reducer with sparse_as_dense = false does the same with
// gradients.
//
// Names, threads, process sets and errors as in collectives.h. The result is a new coalesced sparse
// tensor without autograd history, with the same bits on all ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"
#include "horon/ops/session/process_set.h"

namespace horon {

namespace torch_detail {
class PendingSparse;
}

struct SparseAllreduceOptions {
  std::string name = {};  // empty: "sparse_allreduce.noname.N"
  // Sum or Average: other ops would have to count the zeros that are not stored. Average divides by
  // the number of ranks that have not joined.
  ReduceOp op = ReduceOp::Average;
  ProcessSet process_set = {};
};

// A sparse allreduce under way, as Handle in collectives.h.
class SparseHandle {
 public:
  SparseHandle() = default;
  explicit SparseHandle(std::shared_ptr<torch_detail::PendingSparse> pending);

  // Has it ended (well or badly)? Never blocks.
  bool poll() const;
  // Blocks until it has ended. Returns the result, the same tensor each time, or throws its error,
  // each time.
  at::Tensor wait() const;
  // As wait(), but throws Error(Timeout) when the time is over. The collective goes on.
  at::Tensor wait(std::chrono::nanoseconds timeout) const;

 private:
  std::shared_ptr<torch_detail::PendingSparse> pending_;
};

at::Tensor sparse_allreduce(const at::Tensor& tensor, const SparseAllreduceOptions& options = {});
SparseHandle sparse_allreduce_async(const at::Tensor& tensor,
                                    const SparseAllreduceOptions& options = {});

}  // namespace horon
