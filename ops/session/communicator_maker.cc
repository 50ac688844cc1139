#include "horon/ops/session/communicator_maker.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "horon/core/base/blocked_signals.h"
#include "horon/core/base/keep_for_ever.h"

namespace horon::ops {

// Shared with the thread, which may stay behind.
struct CommunicatorMaker::Call {
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;
  bool left_behind = false;
  std::string failure;
  std::unique_ptr<MpiCommunicator> communicator;
};

CommunicatorMaker::CommunicatorMaker(core::MpiLibrary& library, const core::MpiBootstrap& bootstrap,
                                     std::vector<int> ranks)
    : library_(library), call_(std::make_shared<Call>()) {
  const core::BlockedSignals blocked;  // the thread inherits them
  thread_ = std::thread([call = call_, &bootstrap, ranks = std::move(ranks)] {
    std::unique_ptr<MpiCommunicator> communicator;
    std::string failure;
    try {
      communicator = std::make_unique<MpiCommunicator>(bootstrap, ranks);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    const std::lock_guard lock(call->mutex);
    if (call->left_behind) {
      core::keep_for_ever(std::move(communicator));  // the library that it belongs to may be gone
      return;
    }
    call->communicator = std::move(communicator);
    call->failure = std::move(failure);
    call->returned = true;
    call->changed.notify_all();
  });
}

CommunicatorMaker::~CommunicatorMaker() {
  {
    const std::lock_guard lock(call_->mutex);
    if (!call_->returned) {
      call_->left_behind = true;
      library_.abandon();
      thread_.detach();
      return;
    }
  }
  thread_.join();
}

bool CommunicatorMaker::wait(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(call_->mutex);
  return call_->changed.wait_for(lock, timeout, [this] { return call_->returned; });
}

std::string CommunicatorMaker::failure() const {
  const std::lock_guard lock(call_->mutex);
  return call_->failure;
}

std::unique_ptr<MpiCommunicator> CommunicatorMaker::take() {
  const std::lock_guard lock(call_->mutex);
  return std::move(call_->communicator);
}

}  // namespace horon::ops
