// Send and receive: tensors from one rank to another.
//
//   if (horon::rank() == 0) horon::send(x, 1);
//   if (horon::rank() == 1) horon::recv(x, 0);      // into x
//
// The n-th send() of one rank to another meets the n-th recv() there, counted for each tag and each
// process set; sends of different tags may be received in any order. Dtype and shape must be the
// same: where they differ both ranks get Error(Mismatch) with both values, and the session goes on.
// A send without its recv, or a recv without its send, is reported as any stall is, with the ranks,
// also in a process set that the other rank has left. When a rank shuts down, what the other still
// waits for fails (RankLeft).
//
// A send is a broadcast among two ranks, in a process set that every two ranks have without making
// it: both agree first that both have come, then the values travel by MPI. So a send ends when the
// tensor has been received or is on its way, not before recv() has been called. A rank that waits
// in join() neither sends nor receives; what others wait for from it is a stall.
//
// recv() from kAnySource takes the next message of that tag and set from the first rank that has
// sent one, and its handle tells which; its shape and dtype are compared then. Of several such
// recv() the oldest is served first. A recv() that names its rank claims that rank's next message
// at the call, even ahead of a recv() from kAnySource that already waits. A recv() from
// kAnySource fails (RankLeft) if all others have shut down; it also ends when this rank shuts down.
//
// Dense tensors of all dtypes, shapes and strides, on the CPU or on the GPUs of both ranks. GPU
// tensors travel by way of the host, after the work that the current stream had been given at the
// call. Such a send has ended when the GPU has read the tensor; after a recv() the current stream
// waits for the tensor.
//
// Up to 1,024 messages of one tag may be in flight from one rank to another; a further one throws
// Error(Limit) and is not counted. A tag is kept for ever, with up to 1,024 names: use few tags,
// not one for each step. Any thread; one thread at a time for each tag, or the count has no
// meaning. Throw Error.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon {

struct PointToPointOptions {
  int tag = 0;
  // Counts its messages apart from those of other sets; both ranks are members of it.
  ProcessSet process_set = {};
};

// In place of a rank to receive from: any other one of the process set.
inline constexpr int kAnySource = std::numeric_limits<int>::min();

// Of a receive.
class ReceiveHandle : public Handle {
 public:
  ReceiveHandle() = default;
  ReceiveHandle(Handle handle, std::shared_ptr<const std::atomic<int>> source)
      : Handle(std::move(handle)), source_(std::move(source)) {}

  // The rank that sent the tensor. Waits; throws what wait() throws.
  int source() const;

 private:
  std::shared_ptr<const std::atomic<int>> source_;
};

// `to` and `from` are ranks of the world, and not this one. Each returns when its part is done.
void send(const at::Tensor& tensor, int to, const PointToPointOptions& options = {});
// Writes to the tensor, and gives it back.
at::Tensor recv(const at::Tensor& tensor, int from, const PointToPointOptions& options = {});

// Return at once. Between the call and the end of wait() a tensor that is sent may not be written,
// and one that is received may not be touched. wait() gives the tensor.
Handle send_async(const at::Tensor& tensor, int to, const PointToPointOptions& options = {});
ReceiveHandle recv_async(const at::Tensor& tensor, int from,
                         const PointToPointOptions& options = {});

}  // namespace horon
