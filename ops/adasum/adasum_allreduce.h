// The allreduce whose operator is Adasum (adasum_kernels.h): each tensor of a batch is a vector of
// its own.
//
// The vectors of two ranks are combined, then those of two pairs, and so on: by vector halving and
// distance doubling, as in the paper, so that each rank combines its share of the elements. The
// scalar products are summed over the ranks that have parts of the two vectors. If the number of
// ranks is no power of two, the ranks above the largest power first give their vectors to as many
// of the first ranks, and get the result afterwards. Every two ranks exchange messages.
//
// All ranks end with the same bits, since each element is combined by one of them. 16-bit floats
// are rounded after each combination.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/scratch_pool.h"
#include "horon/ops/hierarchical/exchange_window.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

class AdasumAllreduce final : public core::CollectiveOp {
 public:
  // Among all ranks of the set. `piece_bytes_max`: the longest message.
  AdasumAllreduce(std::shared_ptr<Messages> messages, std::shared_ptr<core::ScratchPool> scratch,
                  int rank, int size, int64_t piece_bytes_max = Messages::kBytesMax);

  std::string_view name() const override { return "adasum_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  // Tags follow the order of start.
  core::StartOrder start_order() const override { return core::StartOrder::Log; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  class Running;

  const std::shared_ptr<Messages> messages_;
  const std::shared_ptr<core::ScratchPool> scratch_;
  const int rank_;
  const int size_;
  const int64_t piece_bytes_max_;
  ExchangeWindow window_;
};

}  // namespace horon::ops
