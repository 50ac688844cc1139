// The average of many tensors, of which small ones travel together.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/tensors/failures.h"

namespace horon::torch_detail {

// The fact that ranks compare about a tensor which they know by its place in a list.
Fact fact_in_place(const char* what, const std::string& name, const at::Tensor& tensor,
                   size_t place);

// Averages in place; the constructor begins them all. Every rank gives tensors of the same dtypes
// and shapes in the same order. Local until wait(), which must be called.
class AverageInGroups {
 public:
  // The parcels (in_parcels()) are called "NAME.0", "NAME.1", ... `compression`: of float32 and
  // complex64; other dtypes travel as they are.
  AverageInGroups(const std::string& name, const std::vector<at::Tensor>& tensors,
                  const ProcessSet& set, Compression compression = Compression::None);
  // Waits for all, also when one fails: none is in flight when the first Error is thrown, which may
  // be one of the constructor's.
  void wait();

 private:
  std::vector<GroupHandle> handles_;
  Failures failures_;
};

}  // namespace horon::torch_detail
