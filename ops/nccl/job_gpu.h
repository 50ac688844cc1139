// The GPU of one rank, and whether the ranks of a job or of a process set can use theirs together.
// This is found and compared at the start, without touching a device; the device is opened when a
// collective needs it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "horon/core/bootstrap/bootstrap.h"
#include "horon/core/runtime/seat_visitor.h"
#include "horon/ops/cuda/background_call.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/gpu_libraries.h"
#include "horon/ops/nccl/launch_order.h"

namespace horon::ops {

// Any thread.
class JobGpu final : public core::SeatVisitor, public std::enable_shared_from_this<JobGpu> {
 public:
  // Collective over all ranks of the job. Never throws for want of GPUs: unavailable() says so. A
  // rank gets the only device that it may use, or the one with its local rank. `collectives`:
  // HORON_GPU_COLLECTIVES. `shared_memory`: ranks of a host may share memory.
  static std::shared_ptr<JobGpu> find(const core::Bootstrap& bootstrap,
                                      std::shared_ptr<GpuLibraries> libraries,
                                      const std::string& collectives = "auto",
                                      bool shared_memory = true);
  // A GPU that is open already, of a job whose ranks all have one. It does not know which ranks
  // these are.
  JobGpu(std::shared_ptr<CudaApi> cuda, std::shared_ptr<NcclApi> nccl);

  // Why collectives of these ranks can't reach tensors on their GPUs: one sentence that names the
  // ranks, and the cure if there is one; the same on all ranks. Empty: they can, since each of them
  // has a GPU, or since they are mixed(). `ranks`: of the job, ascending, at least one.
  std::string unavailable(const std::vector<int>& ranks) const;
  // Some of these ranks have a GPU and others have none, and HORON_GPU_COLLECTIVES=host asks for
  // copies: tensors on GPUs are brought to the host for each collective.
  bool mixed(const std::vector<int>& ranks) const;
  // unavailable() for all ranks.
  const std::string& unavailable() const { return unavailable_; }
  bool available() const { return unavailable_.empty(); }
  // True: collectives use NCCL, which then connects all GPUs of the job. False: the host makes them
  // on copies, in every set. If only some sets had NCCL, its kernels, which wait for peers, and
  // kernels of two ranks on one device could wait for each other for ever.
  bool uses_nccl() const { return nccl_unavailable_.empty(); }
  // The host makes on copies what NCCL does not have, or all collectives.
  bool stages() const { return !insists_on_nccl_; }
  const std::string& nccl_unavailable() const { return nccl_unavailable_; }
  // The ranks that have a GPU, ascending.
  const std::vector<int>& owners() const { return owners_; }
  bool any_device(const std::vector<int>& ranks) const;
  // As unavailable(), for a set that these ranks make alone. Its collectives keep an order with
  // those of all ranks (launch_order.h), so the latter must keep that order already.
  std::string unavailable_alone(const std::vector<int>& ranks) const;
  // From now on, on all ranks, the world's collectives by NCCL, if any, keep an order with those of
  // other sets.
  void note_order_of_sets() { order_of_sets_ = true; }
  bool keeps_order_of_sets() const { return order_of_sets_ || !available() || !uses_nccl(); }
  // Allreduces between hosts go by messages (ops/hierarchical_gpu), so the host drives them. If
  // hosts have several ranks, each has two halves in NCCL, with the messages in between. The same
  // answers on all ranks of the job.
  bool host_drives_allreduce() const { return host_drives_allreduce_; }
  bool reduces_in_halves() const { return reduces_in_halves_; }
  // This rank's device; -1: it has none.
  int device() const { return mine_.device; }
  // Why this rank has no GPU, or none that NCCL knows.
  const std::string& why_not() const { return mine_.why_not; }
  // NCCL's version as NCCL_VERSION_CODE; 0: there is none.
  int nccl_version() const { return mine_.nccl_version; }

  // True: cuda() returns at once. The first call begins to open the device on a separate thread.
  // For the thread that steps the loop. Throws Error, each time.
  bool is_open();
  // The first call of each opens the device (open_cuda()), or the library. Throw Error.
  std::shared_ptr<CudaApi> cuda();
  std::shared_ptr<NcclApi> nccl();

  // The order among this rank's sets. For the thread that steps the loop.
  const std::shared_ptr<LaunchOrder>& launch_order() const { return launch_order_; }

  // The queue of all sets of this rank for what is captured in graphs. For the thread that steps
  // the loop.
  const std::shared_ptr<CudaQueue>& capture_queue() const { return capture_queue_; }
  // Whether a stream of the program on this rank's device is being captured. Any thread.
  bool is_captured(CudaStream stream) const {
    return libraries_ != nullptr && libraries_->is_captured(stream);
  }

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
  // Why NCCL can't connect the GPUs of the ranks that have one; empty if it can, or if no rank has
  // one. `facts`: by rank of the job; `host_of` as in Topology.
  static std::string judge(const std::vector<Facts>& facts, const std::vector<int>& host_of);

 private:
  JobGpu() = default;
  bool owns(int rank) const;  // a GPU

  std::shared_ptr<GpuLibraries> libraries_;
  const std::shared_ptr<LaunchOrder> launch_order_ = std::make_shared<LaunchOrder>();
  // It may keep `this`: only sets use the queue, and they own this object.
  const std::shared_ptr<CudaQueue> capture_queue_ =
      std::make_shared<CudaQueue>([this] { return cuda(); }, CudaQueue::Use::Captures);
  Facts mine_;
  std::vector<Facts> facts_;  // of all ranks
  std::vector<int> owners_;
  bool insists_on_nccl_ = false;
  bool insists_on_host_ = false;
  std::string unavailable_;
  std::string nccl_unavailable_;
  bool host_drives_allreduce_ = false;
  bool reduces_in_halves_ = false;
  std::atomic<bool> order_of_sets_{false};
  void stay_out_of_captures() noexcept;  // if this thread is the seated one; under mutex_

  std::unique_ptr<BackgroundCall<std::shared_ptr<CudaApi>>> background_;  // of is_open()
  std::mutex opening_;  // held while a library or the device is opened, which takes long
  std::mutex mutex_;    // guards the next ones; held for moments only
  std::shared_ptr<CudaApi> cuda_;
  std::shared_ptr<NcclApi> nccl_;           // by opening_ alone
  std::thread::id seated_;                  // the thread that steps the loop
  std::optional<int> capture_mode_before_;  // its own
};

}  // namespace horon::ops
