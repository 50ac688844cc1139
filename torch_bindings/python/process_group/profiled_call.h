// What PyTorch's profiler shows of a call of the process group.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace at {
struct RecordFunction;
}
namespace c10 {
class ThreadLocalDebugInfo;
}

namespace horon::python::process_group {

// "horon:all_reduce" with the shapes of the inputs, as c10d's own backends have it: from the call,
// in which this is made, to the end of the operation.
class ProfiledCall {
 public:
  ProfiledCall();  // shows nothing
  // Where no profiler records on this thread it costs one look.
  ProfiledCall(::c10d::OpType type, c10::ArrayRef<at::Tensor> inputs);
  ~ProfiledCall();
  ProfiledCall(ProfiledCall&& other) noexcept;
  ProfiledCall& operator=(ProfiledCall&&) = delete;

  bool records() const { return record_ != nullptr; }
  // When the operation has ended, by any thread, before anybody learns of it: who has waited for
  // the call may end the profiler, and what it has recorded is gone then.
  void end() noexcept;

 private:
  std::unique_ptr<at::RecordFunction> record_;
  // What the profiler has put on the thread of the call, as long as it runs: nobody may have waited
  // for the call. (An end in the very moment in which it is taken away is not seen.)
  std::weak_ptr<c10::ThreadLocalDebugInfo> profiler_;
};

}  // namespace horon::python::process_group
