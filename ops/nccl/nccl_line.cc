#include "horon/ops/nccl/nccl_line.h"

#include <utility>

namespace horon::ops {

NcclLine::NcclLine(std::shared_ptr<NcclCommunicator> communicator, std::unique_ptr<LaunchTurn> turn,
                   bool ordered)
    : communicator_(std::move(communicator)),
      turn_(std::move(turn)),
      ordered_(ordered && turn_ != nullptr) {}

bool NcclLine::may_call(uint64_t turn) {
  if (turn != calling_) {
    communicator_->check();
    return false;
  }
  return communicator_->is_ready() && (!ordered_ || turn_->may_enter());
}

core::Progress NcclLine::wait() const {
  const bool drives =
      communicator_->must_be_driven() || (turn_ != nullptr && turn_->must_be_driven());
  return drives ? core::Progress::Driving : core::Progress::Polling;
}

void NcclLine::call(CudaQueue& queue, const std::function<void(NcclApi&, NcclComm)>& calls) {
  captured_ = queue.is_for_captures();
  if (captured_) {
    communicator_->require_capture(queue.stream());
  } else {
    if (ordered_) turn_->enter(queue);
    queue_ = &queue;
  }
  communicator_->call(calls);
}

bool NcclLine::is_enqueued() {
  if (!communicator_->is_ready()) return false;
  if (ordered_) {
    if (!captured_) turn_->becomes_last(*queue_);
    turn_->entered();
  }
  ++calling_;
  return true;
}

core::SharedScratch* NcclLine::shared_scratch(size_t bytes) {
  return communicator_->window().scratch(
      bytes, [this] { return queue_ == nullptr ? nullptr : queue_->record(); });
}

void NcclLine::keep_order() {
  if (ordered_ || turn_ == nullptr) return;
  ordered_ = true;
  if (queue_ != nullptr) turn_->becomes_last(*queue_);
}

}  // namespace horon::ops
