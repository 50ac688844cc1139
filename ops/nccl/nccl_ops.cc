#include "horon/ops/nccl/nccl_ops.h"

#include <string>
#include <string_view>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/core/execution/finished_flight.h"
#include "horon/ops/nccl/nccl_batch.h"
#include "horon/ops/nccl/nccl_reduction.h"

namespace horon::ops {
namespace {

using core::Progress;

class NcclInFlight final : public core::InFlight {
 public:
  NcclInFlight(std::shared_ptr<NcclLine> line, core::Batch batch)
      : line_(std::move(line)),
        turn_(line_->take_turn()),
        batch_(std::move(batch), line_->communicator().rank(), line_->communicator().size()) {}

  Progress step() override {
    if (!called_) {
      if (!line_->may_call(turn_)) return line_->wait();
      batch_.enqueue_before();
      line_->call(batch_.queue(), [&](NcclApi& nccl, NcclComm comm) { batch_.call(nccl, comm); });
      called_ = true;
    }
    if (!line_->is_enqueued()) return Progress::Polling;
    batch_.enqueue_after();
    return Progress::Done;
  }

  void watch() override { line_->communicator().check(); }

 private:
  const std::shared_ptr<NcclLine> line_;
  const uint64_t turn_;
  NcclBatch batch_;
  bool called_ = false;
};

class NcclOp final : public core::CollectiveOp {
 public:
  NcclOp(CollectiveKind kind, std::shared_ptr<NcclLine> line, bool wants_ready_tensors)
      : kind_(kind),
        name_(core::concat("nccl_", to_string(kind))),
        line_(std::move(line)),
        wants_ready_tensors_(wants_ready_tensors) {}

  std::string_view name() const override { return name_; }
  std::string refusal(const core::BatchFacts& facts) const override {
    if (facts.captured && wants_ready_tensors_) {
      return "the host asks first whether tensors are ready, which a CUDA graph can't hold";
    }
    return nccl_refusal(facts, kind_);
  }
  std::string refusal_of_capture_now() const override {
    if (line_->communicator().has_been_made()) return "";
    return "it is captured in a CUDA graph before NCCL has connected the ranks, which can't be "
           "captured; run such a step at least once before the capture, to warm up";
  }
  bool enqueues() const override { return true; }
  bool wants_ready_tensors() const override { return wants_ready_tensors_; }
  size_t shared_scratch_max() const override {
    return kind_ == CollectiveKind::Allreduce ? line_->communicator().window().bytes_max() : 0;
  }
  core::SharedScratch* shared_scratch(size_t bytes) override {
    return line_->shared_scratch(bytes);
  }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override {
    return std::make_unique<NcclInFlight>(line_, std::move(batch));
  }
  void abort() noexcept override { line_->communicator().abort(); }
  void finish_abort(std::chrono::steady_clock::time_point limit) noexcept override {
    line_->communicator().finish_abort(limit);
  }

 private:
  const CollectiveKind kind_;
  const std::string name_;
  const std::shared_ptr<NcclLine> line_;
  const bool wants_ready_tensors_;
};

// No work: the point of the set's order at which all members begin to keep an order among sets.
class OrderMark final : public core::CollectiveOp {
 public:
  explicit OrderMark(std::shared_ptr<NcclLine> line) : line_(std::move(line)) {}

  std::string_view name() const override { return "nccl_barrier"; }
  std::string refusal(const core::BatchFacts& facts) const override {
    if (facts.kind != CollectiveKind::Barrier) return "it does barrier only";
    return facts.device == DeviceKind::Cuda ? "" : "it orders collectives on devices only";
  }
  // Starts in the order of the log: all earlier collectives are in the stream.
  std::unique_ptr<core::InFlight> start(core::Batch /*batch*/) override {
    line_->keep_order();
    return std::make_unique<core::FinishedFlight>();
  }

 private:
  const std::shared_ptr<NcclLine> line_;
};

}  // namespace

std::vector<std::unique_ptr<core::CollectiveOp>> make_nccl_ops(
    const std::shared_ptr<NcclLine>& line, bool wants_ready_tensors) {
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
  for (const CollectiveKind kind :
       {CollectiveKind::Allreduce, CollectiveKind::Reducescatter, CollectiveKind::Broadcast,
        CollectiveKind::Allgather, CollectiveKind::Alltoall, CollectiveKind::Gather,
        CollectiveKind::Scatter}) {
    ops.push_back(std::make_unique<NcclOp>(kind, line, wants_ready_tensors));
  }
  ops.push_back(std::make_unique<OrderMark>(line));
  return ops;
}

}  // namespace horon::ops
