// What a call of the process group gives back.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "horon/torch_bindings/python/process_group/completion_threads.h"
#include "horon/torch_bindings/python/process_group/late_results.h"
#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

// The rank of the group that a message comes from. Null: the call is no receive.
using MessageSource = std::function<int()>;

// Torch binds synchronize() such that its caller keeps the GIL, which the wait may not. Horon's
// Python module installs a function that calls `wait` without it.
using WithoutGil = void (*)(const std::function<void()>& wait);
void install_without_gil(WithoutGil function);

// A thread that waits for it does the work itself; a future is made when somebody asks for one.
class OperationWork final : public ::c10d::Work {
 public:
  // `threads`: for its future. `late_results`: of the group. `source`: of a recv.
  OperationWork(int rank, uint64_t number, std::shared_ptr<Operation> operation,
                std::shared_ptr<CompletionThreads> threads,
                std::shared_ptr<LateResults> late_results, MessageSource source);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override { return source_ ? source_() : Work::sourceRank(); }
  std::vector<at::Tensor> result() override { return operation_->outputs(); }
  void synchronize() override;
  // kNoTimeout: that of the call, else of the group. Throws Error.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  Future getFuture() override;
  // Some thread waits for the end of the operation from now on, whether or not somebody else does.
  void watch() const { (void)make_future(); }
  uint64_t getSequencenumber() const override { return number_; }

 private:
  Future make_future() const;

  const uint64_t number_;
  const std::shared_ptr<Operation> operation_;
  const std::shared_ptr<CompletionThreads> threads_;
  const std::shared_ptr<LateResults> late_results_;
  const MessageSource source_;
  std::mutex future_mutex_;
  Future future_;
};

}  // namespace horon::python::process_group
