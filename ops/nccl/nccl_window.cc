#include "horon/ops/nccl/nccl_window.h"

#include <utility>

namespace horon::ops {

core::SharedScratch* NcclWindow::scratch(size_t bytes, const LastOfEarlier& earlier) {
  if (bytes > parts_.bytes) return nullptr;
  if (stage_ == Stage::Unasked) {
    earlier_ = earlier();
    stage_ = Stage::Draining;
  }
  return stage_ == Stage::There ? &scratch_ : nullptr;
}

NcclWindow::Step NcclWindow::step(NcclApi& nccl, NcclComm comm) {
  while (is_being_made()) {
    if (const std::optional<Step> step = step_on(nccl, comm)) return *step;
  }
  return Step::Settled;
}

std::optional<NcclWindow::Step> NcclWindow::step_on(NcclApi& nccl, NcclComm comm) {
  switch (stage_) {
    case Stage::Draining:
      if (earlier_ != nullptr && !earlier_->happened()) return Step::Working;
      earlier_.reset();
      if (nccl.has_windows()) allocate();
      stage_ = Stage::Allocating;
      return std::nullopt;
    case Stage::Allocating:
      if (allocating_ != nullptr) {
        const std::optional<std::byte*> allocated = allocating_->take();
        if (!allocated) return Step::Working;
        scratch_.memory = *allocated;
        allocating_.reset();
      }
      scratch_.bytes = parts_.bytes;
      answer_ = scratch_.memory != nullptr ? kYes : kNo;
      stage_ = Stage::Meeting;
      return std::nullopt;
    case Stage::Meeting: {
      const std::optional<uint8_t> all = vote();
      if (!all) return Step::Working;
      if (*all == kYes) {
        begin_to_register(nccl, comm);
        stage_ = Stage::Registering;
      } else {
        free_memory(nccl);
        stage_ = Stage::None;
      }
      return std::nullopt;
    }
    case Stage::Registering:
      if (answer_ != kLost && !has_registered(nccl, comm)) return Step::Working;
      stage_ = Stage::Comparing;
      // Those who wait for this member in NCCL learn of it by the abort.
      if (answer_ == kLost) return Step::CommunicatorLost;
      return std::nullopt;
    case Stage::Comparing:
      return compare(nccl, comm);
    case Stage::Unasked:
    case Stage::There:
    case Stage::None:
      break;
  }
  return Step::Settled;
}

// NCCL's allocation may wait for the device.
void NcclWindow::allocate() {
  const auto on_device = [gpu = parts_.gpu](const auto& call) {
    const std::shared_ptr<CudaApi> cuda = gpu->cuda();
    cuda->use();  // the thread is Horon's own
    const CudaDeviceGuard guard(*cuda);
    const int mode_before = cuda->exchange_capture_mode(CudaApi::kStaysOutOfCaptures);
    auto result = call(*gpu->nccl());
    cuda->exchange_capture_mode(mode_before);
    return result;
  };
  allocating_ = std::make_unique<BackgroundCall<std::byte*>>(
      [on_device, bytes = parts_.bytes] {
        return on_device([bytes](NcclApi& nccl) { return nccl.allocate(bytes); });
      },
      [gpu = parts_.gpu](std::byte* unwanted) {
        if (unwanted != nullptr) gpu->nccl()->free(unwanted);
      });
}

std::optional<uint8_t> NcclWindow::vote() {
  return parts_.vote != nullptr ? parts_.vote->largest(answer_) : answer_;
}

void NcclWindow::begin_to_register(NcclApi& nccl, NcclComm comm) noexcept {
  try {
    began_ = Clock::now();
    handle_ = std::make_shared<NcclWindowHandle>(nullptr);
    nccl.begin_register(comm, scratch_.memory, parts_.bytes, handle_.get());
  } catch (...) {
    answer_ = kLost;
  }
}

bool NcclWindow::has_registered(NcclApi& nccl, NcclComm comm) noexcept {
  try {
    if (nccl.idle(comm)) {
      answer_ = *handle_ != nullptr ? kYes : kNo;
    } else if (Clock::now() - began_ > parts_.limit) {
      answer_ = kLost;
    } else {
      return false;
    }
  } catch (...) {
    answer_ = kLost;
  }
  return true;
}

std::optional<NcclWindow::Step> NcclWindow::compare(NcclApi& nccl, NcclComm comm) {
  const std::optional<uint8_t> all = vote();
  if (!all) return Step::Working;
  if (*all == kYes) {
    stage_ = Stage::There;
    return std::nullopt;
  }
  const bool is_lost_here = answer_ == kLost;
  stage_ = Stage::None;
  if (is_lost_here) return std::nullopt;
  deregister(nccl, comm);
  if (*all == kLost) return Step::CommunicatorLost;
  free_memory(nccl);
  return std::nullopt;
}

void NcclWindow::deregister(NcclApi& nccl, NcclComm comm) noexcept {
  if (handle_ != nullptr && *handle_ != nullptr) nccl.deregister(comm, *handle_);
  handle_.reset();
}

void NcclWindow::free_memory(NcclApi& nccl) noexcept {
  if (scratch_.memory != nullptr) nccl.free(std::exchange(scratch_.memory, nullptr));
}

bool NcclWindow::is_deregistered(NcclApi& nccl, NcclComm comm) noexcept {
  try {
    const bool in_use = scratch_.last_used != nullptr && !scratch_.last_used->happened();
    if (in_use || scratch_.users > 0) return false;
  } catch (...) {  // nobody knows what a device that has failed still writes
    return false;
  }
  deregister(nccl, comm);
  stage_ = Stage::None;
  return true;
}

NcclWindow::Left NcclWindow::leave() noexcept {
  Left left{std::exchange(scratch_.memory, nullptr), std::move(handle_)};
  if (stage_ != Stage::There) return left;
  // It is still in use, and not by NCCL alone, whose end says nothing of the copies.
  stage_ = Stage::None;
  left.memory = nullptr;
  return left;
}

}  // namespace horon::ops
