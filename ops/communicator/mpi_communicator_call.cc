#include "horon/ops/communicator/mpi_communicator_call.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "horon/core/base/blocked_signals.h"
#include "horon/core/base/keep_for_ever.h"

namespace horon::ops {

// Shared with the thread, which may outlive this object.
struct MpiCommunicatorCall::Call {
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;
  bool left_behind = false;
  std::string failure;
  std::unique_ptr<MpiCommunicator> communicator;
};

MpiCommunicatorCall::MpiCommunicatorCall(core::MpiLibrary& library,
                                         std::function<std::unique_ptr<MpiCommunicator>()> make)
    : library_(library), call_(std::make_shared<Call>()) {
  const core::BlockedSignals blocked;  // the thread inherits them
  thread_ = std::thread([call = call_, make = std::move(make)] {
    std::unique_ptr<MpiCommunicator> communicator;
    std::string failure;
    try {
      communicator = make();
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

MpiCommunicatorCall::~MpiCommunicatorCall() {
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
  if (call_->communicator) core::keep_value_for_ever(call_->communicator);
}

bool MpiCommunicatorCall::wait(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(call_->mutex);
  return call_->changed.wait_for(lock, timeout, [this] { return call_->returned; });
}

std::string MpiCommunicatorCall::failure() const {
  const std::lock_guard lock(call_->mutex);
  return call_->failure;
}

std::unique_ptr<MpiCommunicator> MpiCommunicatorCall::take() {
  const std::lock_guard lock(call_->mutex);
  return std::move(call_->communicator);
}

}  // namespace horon::ops
