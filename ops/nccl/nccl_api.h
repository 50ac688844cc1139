// The calls of NCCL that Horon makes, as one narrow interface: those of the library that the
// process has loaded, or, for tests, a host that does the same through shared memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"
#include "horon/ops/cuda/cuda_api.h"

namespace horon::ops {

using NcclComm = void*;                      // an ncclComm_t
using NcclWindowHandle = void*;              // an ncclWindow_t; null: there is none
using NcclUniqueId = std::array<char, 128>;  // made by one rank and given to all

// A failure throws Error(OperationFailed) with the name of the call and NCCL's own text. One thread
// at a time, and no two communicators of a device at once. The device must be the current one of
// the thread (CudaDeviceGuard), but for version(), has_windows(), unique_id() and the memory.
class NcclApi {
 public:
  virtual ~NcclApi() = default;
  // As NCCL_VERSION_CODE: 22809.
  virtual int version() const = 0;

  virtual NcclUniqueId unique_id() = 0;
  // Returns at once; done when idle() says so.
  virtual NcclComm begin_init(int size, const NcclUniqueId& id, int rank) = 0;
  // False: NCCL is still busy with the call before, and no other call may be made. Throws if
  // something has gone wrong with the communicator since.
  virtual bool idle(NcclComm comm) = 0;
  // Begins to wait until all that was enqueued has happened on all ranks; done when idle() says so.
  virtual void begin_finalize(NcclComm comm) = 0;
  // For a communicator that has been finalized. Local.
  virtual void destroy(NcclComm comm) noexcept = 0;
  // Ends the kernels that wait for peers. May take long if peers do not abort too.
  virtual void abort(NcclComm comm) noexcept = 0;

  // Device memory that NCCL can use best, in pages of 2 MiB; null if it has none. Both may wait for
  // work of the device.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void free(std::byte* memory) noexcept = 0;
  // False: this NCCL is older than 2.27.3, and the next two must not be called.
  virtual bool has_windows() const = 0;
  // Registers memory of allocate(), of the same size on all members. Collective: it has its place
  // among the calls that the members make in one order. Begins; done when idle() says so. By then
  // it has written `*handle`: null if the devices can't have a window. `*handle` must live until
  // then, or until the communicator has ended.
  virtual void begin_register(NcclComm comm, std::byte* memory, size_t bytes,
                              NcclWindowHandle* handle) = 0;
  // Local; waits for the device. No work may use the memory any more.
  virtual void deregister(NcclComm comm, NcclWindowHandle handle) noexcept = 0;

  // Between these, calls are only collected. end_group() returns at once; the collected calls are
  // in their streams when idle() says so.
  virtual void begin_group() = 0;
  virtual void end_group() = 0;
  // Only reductions that nccl_refusal() allows. `count`: elements of each rank.
  virtual void allreduce(NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
                         DataType dtype, ReduceOp op, CudaStream stream) = 0;
  virtual void reduce(NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
                      DataType dtype, ReduceOp op, int root, CudaStream stream) = 0;
  virtual void reduce_scatter(NcclComm comm, const std::byte* input, std::byte* output,
                              int64_t count, DataType dtype, ReduceOp op, CudaStream stream) = 0;
  // These move bytes.
  virtual void broadcast(NcclComm comm, const std::byte* input, std::byte* output, int64_t bytes,
                         int root, CudaStream stream) = 0;
  virtual void allgather(NcclComm comm, const std::byte* input, std::byte* output, int64_t bytes,
                         CudaStream stream) = 0;
  virtual void send(NcclComm comm, const std::byte* data, int64_t bytes, int to,
                    CudaStream stream) = 0;
  virtual void receive(NcclComm comm, std::byte* data, int64_t bytes, int from,
                       CudaStream stream) = 0;
};

}  // namespace horon::ops
