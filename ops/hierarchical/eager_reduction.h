// Allreduce of a few elements between hosts where each rank has sent its input to all others
// (core::Eager): each rank makes the result itself.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "horon/core/bootstrap/topology.h"
#include "horon/core/execution/collective_op.h"

namespace horon::ops {

class EagerReduction {
 public:
  // `topology`: of the members.
  explicit EagerReduction(const core::Topology& topology);

  // Writes to `batch.output` what hier_allreduce would, with the same bits; the wire type of the
  // job does not count, as for all that is as short (is_exact()). `inputs`: by member, of
  // `batch.count` elements each; the output overlaps with none. Any thread.
  void operator()(const core::Batch& batch, std::span<const std::byte* const> inputs) const;

 private:
  std::vector<std::vector<size_t>> members_of_host_;  // both in their order
  bool one_rank_each_ = true;
};

}  // namespace horon::ops
