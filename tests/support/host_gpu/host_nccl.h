// NCCL without a GPU: ranks that are threads or processes of one host meet in shared memory, and
// their collectives run as kernels of HostCuda's streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "horon/ops/nccl/nccl_api.h"
#include "horon/tests/support/host_gpu/host_cuda.h"
#include "horon/tests/support/host_gpu/host_window.h"

namespace horon::test {

class HostNccl final : public ops::NcclApi {
 public:
  struct Options {
    int busy_polls = 0;           // so often idle() returns false after each call
    int64_t fails_at_group = -1;  // the n-th group fails, and the communicator for good
    // Collectives act as kernels that fill the device: only one runs at a time, and the next one is
    // one that its stream has reached. The device fails once a collective has waited for its peers
    // for 20 s.
    bool fills_device = false;
    bool has_windows = true;
    WindowFault window_fault = WindowFault::None;
    // abort() and destroy() call this until it returns true, as calls that wait for peers to make
    // them too.
    std::function<bool()> end_may_return = nullptr;
  };
  explicit HostNccl(std::shared_ptr<HostCuda> cuda) : HostNccl(std::move(cuda), Options()) {}
  HostNccl(std::shared_ptr<HostCuda> cuda, Options options);
  ~HostNccl() override;

  int version() const override { return 0; }
  ops::NcclUniqueId unique_id() override;
  ops::NcclComm begin_init(int size, const ops::NcclUniqueId& id, int rank) override;
  bool idle(ops::NcclComm comm) override;
  void begin_finalize(ops::NcclComm comm) override;
  void destroy(ops::NcclComm comm) noexcept override;
  void abort(ops::NcclComm comm) noexcept override;
  std::byte* allocate(size_t bytes) override;
  void free(std::byte* memory) noexcept override { windows_.free(memory); }
  bool has_windows() const override { return options_.has_windows; }
  void begin_register(ops::NcclComm comm, std::byte* memory, size_t bytes,
                      ops::NcclWindowHandle* handle) override;
  void deregister(ops::NcclComm comm, ops::NcclWindowHandle handle) noexcept override;
  const HostWindowMemory& windows() const { return windows_; }
  // From now on NCCL reports that each communicator has failed, as after a failure of the network.
  void fail() { has_failed_ = true; }

  void begin_group() override;
  void end_group() override;
  void allreduce(ops::NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
                 DataType dtype, ReduceOp op, ops::CudaStream stream) override;
  void reduce(ops::NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
              DataType dtype, ReduceOp op, int root, ops::CudaStream stream) override;
  void reduce_scatter(ops::NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
                      DataType dtype, ReduceOp op, ops::CudaStream stream) override;
  void broadcast(ops::NcclComm comm, const std::byte* input, std::byte* output, int64_t bytes,
                 int root, ops::CudaStream stream) override;
  void allgather(ops::NcclComm comm, const std::byte* input, std::byte* output, int64_t bytes,
                 ops::CudaStream stream) override;
  void send(ops::NcclComm comm, const std::byte* data, int64_t bytes, int to,
            ops::CudaStream stream) override;
  void receive(ops::NcclComm comm, std::byte* data, int64_t bytes, int from,
               ops::CudaStream stream) override;

 private:
  struct Comm;
  class Device;
  // What one call of a group sends to a peer, or receives from it.
  struct Transfer {
    int peer = 0;
    std::byte* to = nullptr;          // null: it is sent
    const std::byte* from = nullptr;  // null: it is received
    size_t bytes = 0;
    size_t done = 0;
  };
  struct Group {
    Comm* comm = nullptr;
    ops::CudaStream stream = nullptr;
    std::vector<Transfer> transfers;
    std::vector<std::function<void()>> finish;
    std::vector<std::shared_ptr<std::vector<std::byte>>> memory;
  };

  void require_current_device() const;
  void wait_until_an_end_may_return() const;
  static Comm& as_comm(ops::NcclComm comm) { return *static_cast<Comm*>(comm); }
  Group& open_group(ops::NcclComm comm, ops::CudaStream stream);
  // The inputs are received by all ranks (root < 0) or by one, and then reduced in order of rank.
  void add_reduction(ops::NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
                     DataType dtype, ReduceOp op, int root, ops::CudaStream stream);
  static void add_send(Group& group, const std::byte* data, size_t bytes, int to);
  static void add_receive(Group& group, std::byte* data, size_t bytes, int from);
  static bool move_on(Comm& comm, Group& group);

  const std::shared_ptr<HostCuda> cuda_;
  const Options options_;
  HostWindowMemory windows_;
  std::atomic<bool> has_failed_{false};
  std::mutex used_ids_mutex_;  // sets make their communicators on threads of their own
  std::set<ops::NcclUniqueId> used_ids_;
  Group group_;
  int64_t groups_ = 0;
  const std::shared_ptr<Device> device_;
};

}  // namespace horon::test
