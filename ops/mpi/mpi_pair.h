// A message from one rank of a pair to the other: a broadcast among the two.
#pragma once

#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/mpi/mpi_channel.h"
#include "horon/ops/mpi/mpi_messages.h"

namespace horon::ops {

// Uses the communicator of all ranks, so that the pair needs no communicator of its own.
class MpiPair final : public core::CollectiveOp {
 public:
  // The tag that only messages of pairs use on that communicator. Between two ranks they arrive in
  // the order in which they were posted, which is that of the pair's log.
  static constexpr int kTag = MpiMessages::kTagOfPairs;

  // `me`: this rank's index in the pair. `peer`: the other rank, as the communicator knows it. The
  // channel is the pair's own.
  MpiPair(std::shared_ptr<MpiChannel> channel, int me, int peer);
  std::string_view name() const override { return "mpi_pair"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  const std::shared_ptr<MpiChannel> channel_;
  const int me_;
  const int peer_;
};

}  // namespace horon::ops
