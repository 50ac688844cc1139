#include "horon/ops/nccl/nccl_communicator.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::ops {
namespace {

using Clock = std::chrono::steady_clock;

// What peers that live need for it is milliseconds; NCCL's abort waits for peers without a limit.
constexpr std::chrono::seconds kEndingMax{5};

struct Ending {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
};

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaApi> cuda,
                                   int size, const NcclUniqueId& id, int rank)
    : nccl_(std::move(nccl)),
      cuda_(std::move(cuda)),
      size_(size),
      rank_(rank),
      comm_(nccl_->begin_init(size, id, rank)) {}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  if (finalized_in_time()) {
    nccl_->destroy(comm_);
  } else {
    abort();
  }
}

bool NcclCommunicator::finalized_in_time() noexcept {
  try {
    const auto limit = Clock::now() + kEndingMax;
    const auto idle_in_time = [&] {
      while (!nccl_->idle(comm_)) {
        if (Clock::now() > limit) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      return true;
    };
    if (!idle_in_time()) return false;
    nccl_->begin_finalize(comm_);
    return idle_in_time();
  } catch (...) {
    return false;
  }
}

bool NcclCommunicator::may_call(uint64_t turn) {
  if (turn != turn_) {
    check();
    return false;
  }
  return is_idle();
}

bool NcclCommunicator::is_idle() {
  if (comm_ == nullptr) throw Error(ErrorCode::OperationFailed, "NCCL: the job is being aborted");
  return nccl_->idle(comm_);
}

void NcclCommunicator::call(const std::function<void(NcclApi&, NcclComm)>& calls) {
  nccl_->begin_group();
  try {
    calls(*nccl_, comm_);
  } catch (...) {
    nccl_->end_group();
    throw;
  }
  nccl_->end_group();
}

bool NcclCommunicator::is_enqueued() {
  if (!is_idle()) return false;
  ++turn_;
  return true;
}

void NcclCommunicator::check() { (void)is_idle(); }

void NcclCommunicator::abort() noexcept {
  if (comm_ == nullptr) return;
  NcclComm const comm = std::exchange(comm_, nullptr);
  try {
    const auto ending = std::make_shared<Ending>();
    std::thread([nccl = nccl_, comm, ending] {
      nccl->abort(comm);
      const std::lock_guard lock(ending->mutex);
      ending->over = true;
      ending->changed.notify_all();
    }).detach();
    std::unique_lock lock(ending->mutex);
    ending->changed.wait_for(lock, kEndingMax, [&] { return ending->over; });
  } catch (...) {  // no thread to be had: then this one
    nccl_->abort(comm);
  }
}

}  // namespace horon::ops
