// Tensors that the ranks of a host see in each other's processes.
//
// A collective between the ranks of a host moves tensors in LibTorch's own memory through a buffer
// that the ranks share, or through the kernel. With tensors in shared memory it takes one copy
// less: an allreduce sums in place, and each rank stores its block straight into the results of the
// others. It pays for tensors of a megabyte and more that are used again and again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

namespace horon {

// A row-major tensor of zeros on the CPU; `options` gives dtype and requires_grad. Not collective.
// It may outlive the session, whose next one does not share it. Between hosts, and where the ranks
// of a host can't share memory, it is as any other tensor. A child process made by fork(), a
// worker of a loader for instance, does not have the memory: reading it there ends the child by
// SIGSEGV. New memory is slow: keep the tensor. Throws Error(NotInitialized), Error(Limit) if there
// is no memory, and Error(InvalidArgument) for another device, layout or a shape that can't be. Any
// thread.
at::Tensor shared_zeros(at::IntArrayRef shape, const at::TensorOptions& options = {});

}  // namespace horon
