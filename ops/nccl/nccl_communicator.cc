#include "horon/ops/nccl/nccl_communicator.h"

#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "horon/core/base/blocked_signals.h"
#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

// With live peers ending takes milliseconds. With a dead one NCCL's abort may wait without a limit.
constexpr std::chrono::seconds kEndingMax{5};      // of all that a destructor does
constexpr std::chrono::seconds kFinalizingMax{4};  // of these

// While one lives, the thread works on the device for the library and breaks no captures of the
// program.
class OnDevice {
 public:
  explicit OnDevice(CudaApi& cuda)
      : cuda_(cuda),
        guard_(cuda),
        mode_before_(cuda.exchange_capture_mode(CudaApi::kStaysOutOfCaptures)) {}
  ~OnDevice() { cuda_.exchange_capture_mode(mode_before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  CudaApi& cuda_;
  const CudaDeviceGuard guard_;
  const int mode_before_;
};

// For a thread of Horon's own. If the device has failed, NCCL is called all the same.
void use_if_alive(const CudaApi& cuda) noexcept {
  try {
    cuda.use();
  } catch (...) {  // NCCL's call will report the same
  }
}

void end_comm(NcclApi& nccl, CudaApi& cuda, NcclComm comm, bool is_finalized,
              const NcclWindow::Left& window = {}) noexcept {
  const OnDevice on_device(cuda);
  if (is_finalized) {
    nccl.destroy(comm);
  } else {
    nccl.abort(comm);
  }
  if (window.memory != nullptr) nccl.free(window.memory);
}

}  // namespace

// Shared with the thread that destroys or aborts, which may outlive the communicator.
struct NcclCommunicator::Ending {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
};

NcclCommunicator::NcclCommunicator(Parts parts)
    : parts_(std::move(parts)),
      window_({.gpu = parts_.gpu,
               .bytes = parts_.window_bytes,
               .vote = parts_.vote.get(),
               .limit = parts_.window_limit}) {
  HORON_CHECK(parts_.size == 1 || parts_.id_exchange != nullptr, "the members must meet");
  HORON_CHECK(parts_.size == 1 || parts_.window_bytes == 0 || parts_.vote != nullptr,
              "the members must agree on a window");
}

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaApi> cuda,
                                   int size, const NcclUniqueId& id, int rank)
    : NcclCommunicator({.gpu = std::make_shared<JobGpu>(std::move(cuda), std::move(nccl)),
                        .size = size,
                        .rank = rank,
                        .id_exchange = std::make_unique<KnownNcclId>(id),
                        .members = core::concat("its ", size, " members")}) {}

void NcclCommunicator::require_capture(CudaStream stream) const {
  if (parts_.gpu->is_captured(stream)) return;
  throw Error(ErrorCode::OperationFailed,
              "the capture of a CUDA graph has ended before its collectives were in it; wait for "
              "all of them before you end the capture");
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  const auto began = Clock::now();
  end(finalized_by(began + kFinalizingMax) ? End::Destroy : End::Abort);
  finish_abort(began + kEndingMax);
}

bool NcclCommunicator::finalized_by(Clock::time_point limit) noexcept {
  try {
    const OnDevice on_device(*parts_.gpu->cuda());
    const auto idle_in_time = [&] {
      while (!nccl_->idle(comm_)) {
        if (Clock::now() > limit) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      return true;
    };
    if (!idle_in_time()) return false;
    while (!window_.is_deregistered(*nccl_, comm_)) {
      if (Clock::now() > limit) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    nccl_->begin_finalize(comm_);
    return idle_in_time();
  } catch (...) {
    return false;
  }
}

bool NcclCommunicator::is_ready() { return is_made() && has_settled_window() && is_idle(); }

bool NcclCommunicator::must_be_driven() const {
  const bool meets = stage_ == Stage::Meeting && parts_.id_exchange != nullptr &&
                     parts_.id_exchange->must_be_driven();
  return meets || window_.must_be_driven();
}

bool NcclCommunicator::has_settled_window() {
  if (stage_ == Stage::Aborted || !window_.is_being_made()) return true;
  const OnDevice on_device(*parts_.gpu->cuda());
  NcclWindow::Step step = window_.step(*nccl_, comm_);
  while (step == NcclWindow::Step::CommunicatorLost) {
    drop(End::Abort);
    step = window_.step(*nccl_, comm_);
  }
  if (step == NcclWindow::Step::Working) return false;
  if (!window_.failure().empty()) {
    core::log(core::LogLevel::Warn,
              core::concat("NCCL between ", parts_.members, ": no window for packed tensors, and ",
                           "the communicator is made anew: ", window_.failure()));
  }
  core::log(core::LogLevel::Debug,
            core::concat("NCCL between ", parts_.members, ": packed tensors lie in ",
                         window_.is_there() ? "a window" : "no window"));
  if (comm_ != nullptr) return true;
  stage_ = Stage::New;
  return is_made();
}

bool NcclCommunicator::is_made() {
  while (stage_ < Stage::Made) {
    if (make_on()) continue;
    if (Clock::now() - began_ < parts_.limit) return false;
    const double waited_s = std::chrono::duration<double>(Clock::now() - began_).count();
    throw Error(
        ErrorCode::Timeout,
        core::concat(
            "NCCL has not connected ", parts_.members, " in ", std::lround(waited_s),
            " s; NCCL_DEBUG=INFO shows which network it tries (NCCL_SOCKET_IFNAME chooses one)"));
  }
  return true;
}

// Goes on to the next stage, if this one is over.
bool NcclCommunicator::make_on() {
  switch (stage_) {
    case Stage::New:
      began_ = Clock::now();
      open();
      stage_ = Stage::Opening;
      return true;
    case Stage::Opening: {
      std::optional<Opened> opened = opening_->take();
      if (!opened) return false;
      nccl_ = std::move(opened->nccl);
      id_ = opened->id;
      stage_ = Stage::Meeting;
      return true;
    }
    case Stage::Meeting:
      // Set anew while it waits: the limit does not count the wait for a member that comes late.
      began_ = Clock::now();
      if (parts_.id_exchange != nullptr && !parts_.id_exchange->step(id_)) return false;
      begin();
      stage_ = Stage::Beginning;
      return true;
    case Stage::Beginning: {
      const std::optional<NcclComm> begun = beginning_->take();
      if (!begun) return false;
      comm_ = *begun;
      stage_ = Stage::Connecting;
      return true;
    }
    case Stage::Connecting:
      if (!nccl_->idle(comm_)) return false;
      stage_ = Stage::Made;
      has_been_made_.store(true, std::memory_order_release);
      return true;
    case Stage::Made:
    case Stage::Aborted:
      break;
  }
  return false;
}

// The first use of the device and of NCCL by a process takes long.
void NcclCommunicator::open() {
  opening_ = std::make_unique<BackgroundCall<Opened>>([gpu = parts_.gpu, first = parts_.rank == 0] {
    const std::shared_ptr<CudaApi> cuda = gpu->cuda();
    cuda->use();  // the thread is Horon's own
    const OnDevice on_device(*cuda);
    Opened opened{gpu->nccl(), {}};
    if (first) opened.id = opened.nccl->unique_id();
    return opened;
  });
}

void NcclCommunicator::begin() {
  beginning_ = std::make_unique<BackgroundCall<NcclComm>>(
      [gpu = parts_.gpu, nccl = nccl_, size = parts_.size, rank = parts_.rank, id = id_] {
        const std::shared_ptr<CudaApi> cuda = gpu->cuda();
        cuda->use();  // the thread is Horon's own
        const OnDevice on_device(*cuda);
        return nccl->begin_init(size, id, rank);
      },
      [gpu = parts_.gpu, nccl = nccl_](NcclComm unwanted) {
        const std::shared_ptr<CudaApi> cuda = gpu->cuda();
        use_if_alive(*cuda);
        end_comm(*nccl, *cuda, unwanted, /*is_finalized=*/false);
      });
}

bool NcclCommunicator::is_idle() {
  if (stage_ == Stage::Aborted) {
    throw Error(ErrorCode::OperationFailed, "NCCL: the job is being aborted");
  }
  return nccl_->idle(comm_);
}

void NcclCommunicator::call(const std::function<void(NcclApi&, NcclComm)>& calls) {
  const OnDevice on_device(*parts_.gpu->cuda());
  nccl_->begin_group();
  try {
    calls(*nccl_, comm_);
  } catch (...) {
    try {
      nccl_->end_group();
    } catch (...) {  // it fails because of the same call, but does not name it
    }
    throw;
  }
  nccl_->end_group();
}

void NcclCommunicator::check() {
  if (stage_ >= Stage::Made && !window_.may_be_being_registered()) (void)is_idle();
}

void NcclCommunicator::abort() noexcept { end(End::Abort); }

void NcclCommunicator::end(End how) noexcept {
  stage_ = Stage::Aborted;
  beginning_.reset();
  drop(how);
}

void NcclCommunicator::drop(End how) noexcept {
  if (comm_ == nullptr) return;
  NcclComm const comm = std::exchange(comm_, nullptr);
  const NcclWindow::Left window = window_.leave();
  try {
    auto ending = std::make_shared<Ending>();
    const core::BlockedSignals blocked;  // the thread inherits them
    std::thread([nccl = nccl_, cuda = parts_.gpu->cuda(), comm, how, ending, window] {
      use_if_alive(*cuda);
      end_comm(*nccl, *cuda, comm, how == End::Destroy, window);
      const std::lock_guard lock(ending->mutex);
      ending->over = true;
      ending->changed.notify_all();
    }).detach();
    ending_ = std::move(ending);
  } catch (...) {  // no thread to be had: then this one
    end_comm(*nccl_, *parts_.gpu->cuda(), comm, how == End::Destroy, window);
  }
}

void NcclCommunicator::finish_abort(Clock::time_point limit) noexcept {
  if (ending_ == nullptr) return;
  std::unique_lock lock(ending_->mutex);
  ending_->changed.wait_until(lock, limit, [&] { return ending_->over; });
}

}  // namespace horon::ops
