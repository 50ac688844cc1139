#include "horon/torch_bindings/python/process_group/profiled_call.h"

#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace horon::python::process_group {
namespace {

using ::c10d::OpType;

// As c10d's own backends call them.
const char* name_of(OpType type) {
  switch (type) {
    case OpType::BROADCAST:
      return "horon:broadcast";
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
      return "horon:all_reduce";
    case OpType::REDUCE:
      return "horon:reduce";
    case OpType::ALLGATHER:
    case OpType::ALLGATHER_COALESCED:
      return "horon:all_gather";
    case OpType::_ALLGATHER_BASE:
      return "horon:_all_gather_base";
    case OpType::GATHER:
      return "horon:gather";
    case OpType::SCATTER:
      return "horon:scatter";
    case OpType::REDUCE_SCATTER:
      return "horon:reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return "horon:_reduce_scatter_base";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return "horon:all_to_all";
    case OpType::SEND:
      return "horon:send";
    case OpType::RECV:
      return "horon:recv";
    case OpType::RECVANYSOURCE:
      return "horon:recvAnySource";
    case OpType::BARRIER:
      return "horon:barrier";
    default:
      return "horon:other";
  }
}

// The profiler looks up its own state on the thread on which a call ends.
class OnThreadOf {
 public:
  explicit OnThreadOf(std::shared_ptr<c10::ThreadLocalDebugInfo> profiler)
      : before_(c10::ThreadLocalDebugInfo::current()) {
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(std::move(profiler));
  }
  ~OnThreadOf() { c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(before_); }
  OnThreadOf(const OnThreadOf&) = delete;
  OnThreadOf& operator=(const OnThreadOf&) = delete;

 private:
  const std::shared_ptr<c10::ThreadLocalDebugInfo> before_;
};

}  // namespace

ProfiledCall::ProfiledCall() = default;

ProfiledCall::ProfiledCall(OpType type, c10::ArrayRef<at::Tensor> inputs) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks) return;
  profiler_ = c10::ThreadLocalDebugInfo::current();
  record_ = std::make_unique<at::RecordFunction>(std::move(*callbacks));
  record_->_setAsync();  // it ends on another thread, or behind calls that begin later
  if (record_->needsInputs()) {
    std::vector<c10::IValue> values;
    for (const at::Tensor& input : inputs) values.emplace_back(input);
    record_->before(name_of(type), c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
  } else {
    record_->before(name_of(type));
  }
}

ProfiledCall::ProfiledCall(ProfiledCall&& other) noexcept = default;

ProfiledCall::~ProfiledCall() { end(); }

// If the profiler has ended, it finds no state here and writes nothing.
void ProfiledCall::end() noexcept {
  if (record_ == nullptr) return;
  const OnThreadOf thread(profiler_.lock());
  record_.reset();
}

}  // namespace horon::python::process_group
