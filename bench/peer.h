// A library whose collectives are timed beside Horon's, on the same sizes in the same run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::bench {

// Blocking calls on memory of the host, as a program makes them. Used by one thread. All ranks of
// the set that the object was made for make the same calls; roots are indices in that set. Counts
// are elements.
class Peer {
 public:
  virtual ~Peer() = default;

  // In place if input == output. No peer has an average: its sum is timed.
  virtual void allreduce(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                         ReduceOp op) = 0;
  virtual void broadcast(std::byte* data, int64_t count, DataType dtype, int root) = 0;
  // Each rank gives `count` elements.
  virtual void allgather(const std::byte* input, std::byte* output, int64_t count,
                         DataType dtype) = 0;
  // Each rank gives `count` elements to each rank.
  virtual void reducescatter(const std::byte* input, std::byte* output, int64_t count,
                             DataType dtype, ReduceOp op) = 0;
  virtual void alltoall(const std::byte* input, std::byte* output, int64_t count,
                        DataType dtype) = 0;
  // Each rank gives the root `count` elements, or gets them.
  virtual void gather(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                      int root) = 0;
  virtual void scatter(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                       int root) = 0;
  virtual void barrier() = 0;
  virtual int size() const = 0;
};

}  // namespace horon::bench
