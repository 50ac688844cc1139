#include "horon/ops/nccl/nccl_ops.h"

#include <string>
#include <string_view>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/ops/nccl/nccl_batch.h"

namespace horon::ops {
namespace {

using core::Progress;

std::string refusal_of_average(DataType dtype) {
  if (is_floating(dtype) || dtype == DataType::Int64) return "";
  return core::concat("NCCL sums ", to_string(dtype), " in that type, which may wrap around");
}

class NcclInFlight final : public core::InFlight {
 public:
  NcclInFlight(std::shared_ptr<NcclCommunicator> communicator, core::Batch batch)
      : communicator_(std::move(communicator)),
        turn_(communicator_->take_turn()),
        batch_(std::move(batch), communicator_->rank(), communicator_->size()) {}

  Progress step() override {
    if (!called_) {
      if (!communicator_->may_call(turn_)) return Progress::Polling;
      if (batch_.before()) batch_.queue().launch(*batch_.before());
      communicator_->call(batch_.queue(),
                          [&](NcclApi& nccl, NcclComm comm) { batch_.call(nccl, comm); });
      called_ = true;
    }
    if (!communicator_->is_enqueued()) return Progress::Polling;
    if (batch_.after()) batch_.queue().launch(*batch_.after());
    return Progress::Done;
  }

  void watch() override { communicator_->check(); }

 private:
  const std::shared_ptr<NcclCommunicator> communicator_;
  const uint64_t turn_;
  const NcclBatch batch_;
  bool called_ = false;
};

class NcclOp final : public core::CollectiveOp {
 public:
  NcclOp(CollectiveKind kind, std::shared_ptr<NcclCommunicator> communicator)
      : kind_(kind),
        name_(core::concat("nccl_", to_string(kind))),
        communicator_(std::move(communicator)) {}

  std::string_view name() const override { return name_; }
  std::string refusal(const core::BatchFacts& facts) const override {
    if (facts.kind != kind_) return core::concat("it does ", to_string(kind_), " only");
    if (facts.device != DeviceKind::Cuda) {
      return core::concat("it can't reach ", to_string(facts.device), " memory");
    }
    if (!core::reduces(kind_)) return "";
    const std::string_view undefined = why_no_reduction(facts.dtype, facts.reduce_op);
    if (!undefined.empty()) return std::string(undefined);
    if (facts.dtype == DataType::Int16) return "NCCL has no int16";
    if (is_bitwise(facts.reduce_op)) {
      return core::concat("NCCL has no ", to_string(facts.reduce_op));
    }
    return facts.reduce_op == ReduceOp::Average ? refusal_of_average(facts.dtype) : "";
  }
  bool enqueues() const override { return true; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override {
    return std::make_unique<NcclInFlight>(communicator_, std::move(batch));
  }
  void abort() noexcept override { communicator_->abort(); }
  void finish_abort(std::chrono::steady_clock::time_point limit) noexcept override {
    communicator_->finish_abort(limit);
  }

 private:
  const CollectiveKind kind_;
  const std::string name_;
  const std::shared_ptr<NcclCommunicator> communicator_;
};

// No work: the point of the set's order at which all members begin to keep an order among sets.
class OrderMark final : public core::CollectiveOp {
 public:
  explicit OrderMark(std::shared_ptr<NcclCommunicator> communicator)
      : communicator_(std::move(communicator)) {}

  std::string_view name() const override { return "nccl_barrier"; }
  std::string refusal(const core::BatchFacts& facts) const override {
    if (facts.kind != CollectiveKind::Barrier) return "it does barrier only";
    return facts.device == DeviceKind::Cuda ? "" : "it orders collectives on devices only";
  }
  // Behind the collectives that enqueue: all earlier ones are in the stream.
  std::unique_ptr<core::InFlight> start(core::Batch /*batch*/) override {
    communicator_->keep_order();
    return std::make_unique<Nothing>();
  }

 private:
  class Nothing final : public core::InFlight {
   public:
    Progress step() override { return Progress::Done; }
  };
  const std::shared_ptr<NcclCommunicator> communicator_;
};

}  // namespace

std::vector<std::unique_ptr<core::CollectiveOp>> make_nccl_ops(
    const std::shared_ptr<NcclCommunicator>& communicator) {
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
  for (const CollectiveKind kind :
       {CollectiveKind::Allreduce, CollectiveKind::Reducescatter, CollectiveKind::Broadcast,
        CollectiveKind::Allgather, CollectiveKind::Alltoall, CollectiveKind::Gather,
        CollectiveKind::Scatter}) {
    ops.push_back(std::make_unique<NcclOp>(kind, communicator));
  }
  ops.push_back(std::make_unique<OrderMark>(communicator));
  return ops;
}

}  // namespace horon::ops
