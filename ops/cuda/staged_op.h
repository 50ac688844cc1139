// A collective of the host on tensors of a device: the batch has been packed into host memory
// (pinned_memory.h), where the op below runs as it does on tensors of the host. It serves where
// NCCL can't work, such as two ranks on one GPU, and for what NCCL does not have, such as Adasum.
// Long batches go in chunks, if the op below then gives the same results: the executor copies one
// chunk while this op has another (chunked_batch.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/core/execution/chunk_plan.h"
#include "horon/core/execution/collective_op.h"

namespace horon::ops {

class StagedOp final : public core::CollectiveOp {
 public:
  // `below` outlives this.
  explicit StagedOp(core::CollectiveOp& below)
      : below_(below), name_(core::concat(below.name(), "_staged")) {}

  std::string_view name() const override { return name_; }
  std::string refusal(const core::BatchFacts& facts) const override {
    if (facts.device != DeviceKind::Cuda) return "it stages tensors of GPUs only";
    if (facts.captured) {
      return "the host makes it, so a CUDA graph can't hold it; call it outside the capture";
    }
    core::BatchFacts on_host = facts;
    on_host.device = DeviceKind::Host;
    return below_.refusal(on_host);
  }
  core::PieceSizes piece_sizes(const core::Batch& like) const override {
    const bool in_chunks = like.kind == CollectiveKind::Allreduce && same_in_parts(like);
    return in_chunks ? core::chunk_sizes(like) : below_.piece_sizes(like);
  }
  bool same_in_parts(const core::Batch& like) const override { return below_.same_in_parts(like); }
  bool works_in_host_copies() const override { return true; }
  core::StartOrder start_order() const override { return below_.start_order(); }
  const core::CollectiveOp& owner_of_order() const override { return below_.owner_of_order(); }
  // Flights are those of the op below, which also aborts them.
  std::unique_ptr<core::InFlight> start(core::Batch batch) override {
    batch.device = DeviceKind::Host;
    batch.queue = nullptr;
    // The batch is one chunk: piece_bytes was for the length of chunks.
    if (same_in_parts(batch)) batch.piece_bytes = 0;
    return below_.start(std::move(batch));
  }

 private:
  core::CollectiveOp& below_;
  const std::string name_;
};

}  // namespace horon::ops
