// The sum of sparse gradients: every rank gets the rows of all ranks, and adds those with equal
// indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/runtime/handle.h"

namespace horon::torch_detail {

class SparseReduction {
 public:
  // What the names of its collectives end in.
  static constexpr std::string_view kIndices = ".indices", kValues = ".values";

  // `like` has the shape and dtype of the gradient; `mine` is this rank's, coalesced or undefined;
  // `sparse_dim` is the same on all ranks. Starts two allgathers. Throws Error.
  SparseReduction(const std::string& name, uint32_t set, const at::Tensor& like, at::Tensor mine,
                  int64_t sparse_dim);

  void wait() const;
  // After wait(): the coalesced sum, times `scale`, in fp32 for 16-bit types. Throws Error.
  at::Tensor result(double scale) const;

 private:
  struct Gathered {
    at::Tensor input;
    std::vector<std::byte> rows;
  };

  std::shared_ptr<core::HandleState> gather(const std::string& name, uint32_t set,
                                            const std::shared_ptr<Gathered>& memory) const;
  at::Tensor rows_of(const Gathered& memory, int64_t rows) const;

  std::vector<int64_t> sizes_;
  std::shared_ptr<Gathered> indices_, values_;
  std::shared_ptr<core::HandleState> indices_handle_, values_handle_;
};

}  // namespace horon::torch_detail
