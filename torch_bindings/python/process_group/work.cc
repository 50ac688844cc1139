#include "horon/torch_bindings/python/process_group/work.h"

#include <atomic>
#include <utility>

#include <ATen/core/jit_type.h>

namespace horon::python::process_group {
namespace {

std::atomic<WithoutGil> without_gil{[](const std::function<void()>& wait) { wait(); }};

}  // namespace

void install_without_gil(WithoutGil function) { without_gil = function; }

OperationWork::OperationWork(int rank, uint64_t number, std::shared_ptr<Operation> operation,
                             std::shared_ptr<CompletionThreads> threads,
                             std::shared_ptr<LateResults> late_results, MessageSource source)
    : Work(rank, operation->type()),
      number_(number),
      operation_(std::move(operation)),
      threads_(std::move(threads)),
      late_results_(std::move(late_results)),
      source_(std::move(source)) {}

bool OperationWork::isCompleted() {
  const bool completed = operation_->completed();
  late_results_->forget_delivered();
  return completed;
}

bool OperationWork::isSuccess() const { return operation_->finished() && exception() == nullptr; }

std::exception_ptr OperationWork::exception() const {
  if (!operation_->finished()) return nullptr;
  const std::exception_ptr fault = operation_->outcome();
  late_results_->forget_delivered();
  return fault;
}

bool OperationWork::wait(std::chrono::milliseconds timeout) {
  if (timeout > kNoTimeout) {
    operation_->wait_until(Operation::deadline_after(timeout), Operation::Asks::SignalHandlers);
  } else {
    operation_->wait(Operation::Asks::SignalHandlers);
  }
  late_results_->deliver();
  if (const std::exception_ptr fault = operation_->outcome()) std::rethrow_exception(fault);
  return true;
}

void OperationWork::synchronize() {
  without_gil.load()([this] { wait(); });
}

Future OperationWork::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (future_ == nullptr) future_ = make_future();
  return future_;
}

Future OperationWork::make_future() const {
  std::vector<c10::Device> devices;  // a reader waits in their streams
  if (!operation_->device().is_cpu()) devices.push_back(operation_->device());
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::move(devices));
  // A capture may end before another thread would come to it.
  if (operation_->finished() || operation_->is_captured()) {
    complete(*operation_, *future, *late_results_);
  } else {
    // If it throws, no future is left that never ends.
    threads_->add(operation_, future, late_results_);
  }
  return future;
}

}  // namespace horon::python::process_group
