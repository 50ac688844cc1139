// The GPU of one rank, and whether a job can use those of its ranks: what is found and compared at
// the start, without touching a device, and opened when a collective needs it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "horon/core/bootstrap/bootstrap.h"
#include "horon/core/runtime/seat_visitor.h"
#include "horon/ops/nccl/background_call.h"
#include "horon/ops/nccl/gpu_libraries.h"
#include "horon/ops/nccl/launch_order.h"

namespace horon::ops {

// Any thread.
class JobGpu final : public core::SeatVisitor, public std::enable_shared_from_this<JobGpu> {
 public:
  // Collective over all ranks of the job. Never throws for want of GPUs: available() says so, on
  // all ranks alike. A rank gets the only device that it may use, or the one with its local rank.
  // `collectives`: HORON_GPU_COLLECTIVES. `shared_memory`: ranks of a host may share memory.
  static std::shared_ptr<JobGpu> find(const core::Bootstrap& bootstrap,
                                      std::shared_ptr<GpuLibraries> libraries,
                                      const std::string& collectives = "auto",
                                      bool shared_memory = true);
  // One that is open.
  JobGpu(std::shared_ptr<CudaApi> cuda, std::shared_ptr<NcclApi> nccl);

  // Each rank has a GPU, and collectives reach the tensors there.
  bool available() const { return unavailable_.empty(); }
  // Why not: one sentence, with the ranks and the cure, the same on all ranks. Empty: available.
  const std::string& unavailable() const { return unavailable_; }
  // By NCCL: each rank has a GPU of its own, and NCCL of the same version. Else the host makes the
  // collectives, on copies.
  bool uses_nccl() const { return nccl_unavailable_.empty(); }
  const std::string& nccl_unavailable() const { return nccl_unavailable_; }
  // Allreduces between hosts go by messages (ops/hierarchical_gpu), so the host drives them; where
  // hosts have several ranks, these have two halves in NCCL, and the messages in between. The same
  // answers on all ranks of the job.
  bool host_drives_allreduce() const { return host_drives_allreduce_; }
  bool reduces_in_halves() const { return reduces_in_halves_; }
  // At least one rank has a GPU: then people want to know why it is not used.
  bool any_device() const { return any_device_; }
  // Of this rank; -1: it has none.
  int device() const { return device_; }
  // As NCCL_VERSION_CODE; 0: there is none.
  int nccl_version() const { return nccl_version_; }

  // True: cuda() returns at once. The first call begins to open the device on a thread of its own.
  // For the thread that steps the loop. Throws Error, each time.
  bool is_open();
  // The first call opens the device (open_cuda()), or the library. Throw Error.
  std::shared_ptr<CudaApi> cuda();
  std::shared_ptr<NcclApi> nccl();

  // Of this rank's sets; for the thread that steps the loop.
  const std::shared_ptr<LaunchOrder>& launch_order() const { return launch_order_; }

  // The thread that steps the loop must not break graph captures of the program.
  void sits_down() noexcept override;
  void gets_up() noexcept override;

  // What a rank says of itself.
  struct Facts {
    int device = -1;
    std::string bus;
    std::string nccl_host_id;
    int nccl_version = 0;
    std::string why_not;  // it has no device, or no NCCL
  };
  // Why NCCL can't connect the GPUs of these ranks; empty if it can. `host_of`: by rank, as in
  // Topology.
  static std::string judge(const std::vector<Facts>& ranks, const std::vector<int>& host_of);

 private:
  JobGpu() = default;

  std::shared_ptr<GpuLibraries> libraries_;
  const std::shared_ptr<LaunchOrder> launch_order_ = std::make_shared<LaunchOrder>();
  int device_ = -1;
  int nccl_version_ = 0;
  bool any_device_ = false;
  bool host_drives_allreduce_ = false;
  bool reduces_in_halves_ = false;
  std::string unavailable_;
  std::string nccl_unavailable_;
  void stay_out_of_captures() noexcept;  // if this thread is the seated one; under mutex_

  std::unique_ptr<BackgroundCall<std::shared_ptr<CudaApi>>> background_;  // of is_open()
  std::mutex opening_;  // held while a library or the device is opened, which takes long
  std::mutex mutex_;    // of the next ones; held for moments only
  std::shared_ptr<CudaApi> cuda_;
  std::shared_ptr<NcclApi> nccl_;           // by opening_ alone
  std::thread::id seated_;                  // the thread that steps the loop
  std::optional<int> capture_mode_before_;  // its own
};

}  // namespace horon::ops
