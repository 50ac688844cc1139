#include "horon/ops/nccl/nccl_window.h"

#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

// On a thread of Horon's own: NCCL's calls for memory may wait for the device.
void on_device(JobGpu& gpu, const std::function<void(NcclApi&)>& call) {
  const std::shared_ptr<CudaApi> cuda = gpu.cuda();
  cuda->use_in_own_thread();
  call(*gpu.nccl());
}

void free_of(JobGpu& gpu, std::byte* memory) noexcept {
  if (memory == nullptr) return;
  try {
    on_device(gpu, [memory](NcclApi& nccl) { nccl.free(memory); });
  } catch (...) {  // a device that has failed keeps it
  }
}

}  // namespace

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
    const std::optional<Step> step = step_on(nccl, comm);
    if (!step) continue;
    if (is_being_made() && !may_be_being_registered()) (void)nccl.idle(comm);
    return *step;
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
        free_memory();
        stage_ = Stage::None;
      }
      return std::nullopt;
    }
    case Stage::Registering:
      if (answer_ != kLost && !has_registered(nccl, comm)) return Step::Working;
      stage_ = Stage::Comparing;
      // Members that wait for this one in NCCL learn of it by the abort.
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

// Any failure here only means that there is no memory.
void NcclWindow::allocate() try {
  allocating_ = std::make_unique<BackgroundCall<std::byte*>>(
      [gpu = parts_.gpu, bytes = parts_.bytes] {
        std::byte* memory = nullptr;
        try {
          on_device(*gpu, [&](NcclApi& nccl) { memory = nccl.allocate(bytes); });
        } catch (...) {
        }
        return memory;
      },
      [gpu = parts_.gpu](std::byte* unwanted) { free_of(*gpu, unwanted); });
} catch (...) {
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
    lose();
  }
}

bool NcclWindow::has_registered(NcclApi& nccl, NcclComm comm) noexcept {
  try {
    if (nccl.idle(comm)) {
      answer_ = *handle_ != nullptr ? kYes : kNo;
    } else if (Clock::now() - began_ > parts_.limit) {
      const double limit_s = std::chrono::duration<double>(parts_.limit).count();
      failure_ = core::concat("NCCL has not registered it within ", limit_s, " s");
      answer_ = kLost;
    } else {
      return false;
    }
  } catch (...) {
    lose();
  }
  return true;
}

// Call it in a catch block.
void NcclWindow::lose() noexcept {
  answer_ = kLost;
  try {
    failure_ = core::current_error().what();
  } catch (...) {  // no memory for the text
  }
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
  free_memory();
  return std::nullopt;
}

void NcclWindow::deregister(NcclApi& nccl, NcclComm comm) noexcept {
  if (handle_ != nullptr && *handle_ != nullptr) nccl.deregister(comm, *handle_);
  handle_.reset();
}

// If no thread can be started, the memory is lost.
void NcclWindow::free_memory() noexcept {
  std::byte* const memory = std::exchange(scratch_.memory, nullptr);
  if (memory == nullptr) return;
  try {
    freeing_ = std::make_unique<BackgroundCall<bool>>([gpu = parts_.gpu, memory] {
      free_of(*gpu, memory);
      return true;
    });
  } catch (...) {
  }
}

bool NcclWindow::is_deregistered(NcclApi& nccl, NcclComm comm) noexcept {
  try {
    if (is_in_use()) return false;
  } catch (...) {  // nobody knows what a device that has failed still writes
    return false;
  }
  deregister(nccl, comm);
  stage_ = Stage::None;
  return true;
}

bool NcclWindow::is_in_use() const {
  return scratch_.users > 0 || (scratch_.last_used != nullptr && !scratch_.last_used->happened());
}

NcclWindow::Left NcclWindow::leave() noexcept {
  Left left{std::exchange(scratch_.memory, nullptr), std::move(handle_)};
  if (stage_ != Stage::There) return left;
  stage_ = Stage::None;
  bool is_kept = true;  // also if the device has failed, and may still write there
  try {
    is_kept = is_in_use();  // also by copies, which the end of NCCL does not stop
  } catch (...) {
  }
  if (is_kept) left.memory = nullptr;
  return left;
}

}  // namespace horon::ops
