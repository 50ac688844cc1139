// Send and receive: tensors from one rank to another.
//
//   if (horon::rank() == 0) horon::send(x, 1);
//   if (horon::rank() == 1) horon::recv(x, 0);      // into x
//
// The n-th send() of one rank to another meets the n-th recv() there, counted for each tag and each
// process set; sends of different tags may be received in any order. Dtype and shape must be the
// same: where they differ both ranks get Error(Mismatch) with both values, and the session goes on.
// A send that nobody receives, or a recv that nobody sends to, is reported as any stall is, with
// the ranks: also one in a process set that the other rank has left. When a rank shuts down, what
// the other still waits for fails (RankLeft).
//
// A send is a broadcast among two ranks, in a process set that every two ranks have without making
// it: both agree first that both have come, then the values travel by MPI. So a send ends when the
// tensor has been received or is on its way, not before recv() has been called. A rank that waits
// in join() neither sends nor receives; what others wait for from it is a stall.
//
// recv() from kAnySource takes the next message of that tag and set from the first rank that has
// sent one, and its handle tells which; its shape and dtype are compared then. Of those that wait
// the oldest is first. A recv() that names its rank takes the next message of that rank at the
// call, also before one from any rank that waits already. If all others have shut down it fails
// (RankLeft); it also ends when this rank shuts down.
//
// Dense tensors of all dtypes, shapes and strides, on the CPU or on the GPUs of both ranks. These
// travel by way of the host, behind the stream that was the current one at the call. A send of them
// has ended when the GPU has read the tensor; after a recv() the current stream goes on when the
// tensor is there.
//
// Up to 1,024 of one tag may be under way from one rank to another; one more is Error(Limit), and
// counts as no message. A tag is kept for ever, with up to 1,024 names: take few of them, not one
// for each step. Any thread; one thread at a time for each tag, or the count has no meaning. Throw
// Error.
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

  // The rank that it came from. Waits; throws what wait() throws.
  int source() const;

 private:
  std::shared_ptr<const std::atomic<int>> source_;
};

// `to` and `from` are ranks of the world, and not this one. Each returns when its part is done.
void send(const at::Tensor& tensor, int to, const PointToPointOptions& options = {});
// Writes to the tensor, and gives it back.
at::Tensor recv(const at::Tensor& tensor, int from, const PointToPointOptions& options = {});

// At once; between the call and the end of wait() a tensor that is sent may not be written, and one
// that is received may not be touched. wait() gives the tensor.
Handle send_async(const at::Tensor& tensor, int to, const PointToPointOptions& options = {});
ReceiveHandle recv_async(const at::Tensor& tensor, int from,
                         const PointToPointOptions& options = {});

}  // namespace horon
