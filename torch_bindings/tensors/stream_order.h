// The order between what a program does with its tensors and what collectives do with them.
//
// On the CPU both are done when a call returns. On a GPU they happen in streams, and events order
// them: a collective begins after the current stream of the thread that calls it, and the current
// stream of the thread that takes the result goes on after the collective. The host waits for none
// of that.
//
// LibTorch's interfaces for any kind of device do it, so Horon is compiled without CUDA's headers,
// and the same binary runs with a LibTorch that has CUDA and with one that has not.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include "horon/core/base/entry_spec.h"
#include "horon/core/execution/event.h"
#include "horon/core/runtime/handle.h"
#include "horon/core/runtime/submission.h"

namespace horon::torch_detail {

// The device kind that a spec states for tensors on `device` that have passed check_tensor(). In a
// mixed set (Runtime::is_mixed()) it is always the host. Throws as Runtime::require_member().
DeviceKind device_in_spec(c10::Device device, uint32_t set);
// Notes in a submission, which already has its spec, on which device its memory is.
void note_device(core::Submission& submission, c10::Device device);

// The current stream of this thread. Not for the CPU.
c10::Stream current_stream(c10::Device device);
// Whether the current stream of this thread is captured in a graph; a collective is then captured
// too (EntrySpec::captured). False for the CPU.
bool current_stream_is_captured(c10::Device device);
// Returns an event that happens when the current stream of this thread has done what it has been
// given up to now. Null for the CPU. Throws LibTorch's errors.
std::unique_ptr<core::Event> record_current_stream(c10::Device device);
// What the current stream of this thread is given from now on happens after `event`, or after what
// `other` has been given up to now. Null: nothing. An event that no stream can wait for is waited
// for on the host.
void let_current_stream_wait(c10::Device device, core::Event* event);
void let_current_stream_wait(const c10::Stream& other);

// The current stream of this thread works on the tensor, whose memory may belong to another stream:
// LibTorch must know, or it may give the memory away too early. Nothing on the CPU.
void note_current_stream(const at::Tensor& tensor);
void note_current_stream(const c10::DataPtr& memory, c10::Device device);

// While it lives the current stream of this thread is one that the program does not use: what waits
// there holds back nothing else. Nothing on the CPU.
class StreamAside {
 public:
  explicit StreamAside(c10::Device device);

 private:
  c10::OptionalStreamGuard guard_;
};

// The outcome of a collective on tensors of this device: what this thread does with them from now
// on finds the result. Waits until the collective has been enqueued, and on the CPU until it is
// done. Throws the Error that it has ended with.
const core::Outcome& outcome_in_order(const core::HandleState& handle, c10::Device device);

}  // namespace horon::torch_detail
