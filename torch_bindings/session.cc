#include "horon/torch_bindings/session.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include <ATen/Parallel.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "horon/core/base/config.h"
#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/bootstrap/launch.h"
#include "horon/ops/session/running_job.h"

// Null where LibTorch is built without MKL.
extern "C" __attribute__((weak)) int MKL_Get_Max_Threads();
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int threads);

namespace horon {
namespace {

using core::concat;

// Where the program has chosen no number of threads, LibTorch takes that of MKL: the physical
// cores, but one thread in a process of Open MPI or Intel MPI (by OMPI_COMM_WORLD_LOCAL_SIZE and
// MPI_LOCALNRANKS). A new thread, for which MKL is told another number, shows whose number it is.
bool is_number_of_mkl(int threads) {
  if (MKL_Get_Max_Threads == nullptr || MKL_Set_Num_Threads_Local == nullptr) return false;
  const int other = threads + 1;
  int of_mkl = 0;
  int found = 0;
  std::thread([&] {
    of_mkl = MKL_Get_Max_Threads();
    MKL_Set_Num_Threads_Local(other);
    found = at::get_num_threads();
  }).join();
  return found == other && of_mkl == threads;
}

bool has_chosen_threads(const core::CpuShare& share) {
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    if (core::environment_has(name)) return true;
  }
  const int threads = at::get_num_threads();
  return threads != share.visible && threads != share.physical && !is_number_of_mkl(threads);
}

void divide_cores() {
  const core::Config& config = ops::runtime().config();
  const core::CpuShare& share = ops::cpu_share();
  int threads = static_cast<int>(config.threads);
  std::string reason = "HORON_THREADS";
  if (threads == 0) {
    if (has_chosen_threads(share) || share.cores == 0) return;
    // A quota counts in time of hardware threads, of which a core may have several.
    const int cores = share.by_quota ? std::min(share.cores, share.physical) : share.physical;
    threads = std::max(1, cores / share.sharers);
    if (threads == at::get_num_threads()) return;
    reason = concat(share.by_quota ? "a control group's CPU quota leaves " : "", cores,
                    cores == 1 ? " core" : " cores",
                    share.sharers > 1 ? concat(" shared by ", share.sharers, " ranks") : "",
                    "; set OMP_NUM_THREADS or HORON_THREADS to change it");
  }
  at::set_num_threads(threads);
  if (ops::runtime().topology().rank == 0) {
    core::log(core::LogLevel::Info,
              concat(threads, threads == 1 ? " thread" : " threads", " per rank (", reason, ")"));
  }
}

// One core may be right for one thread; else LibTorch's threads would take turns.
void tell_of_binding() {
  const core::CpuShare& share = ops::cpu_share();
  const bool wants_one =
      core::environment_value("OMP_NUM_THREADS") == "1" || ops::runtime().config().threads == 1;
  const core::Topology& topology = ops::runtime().topology();
  if (wants_one || topology.rank != 0) return;
  const std::string remark =
      core::binding_remark(share, core::cores_of_mpirun(), topology.local_size);
  if (!remark.empty()) core::log(core::LogLevel::Info, remark);
}

// Warns, for instance, where Horon was built with a CUDA that is newer than the driver, or with
// none.
void warn_of_unused_gpus(const std::string& why_not) {
  const int count = c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
  if (count == 0 || ops::runtime().topology().rank != 0) return;
  static std::atomic<uint32_t> told_in{0};  // once in a session
  if (told_in.exchange(ops::session_number()) == ops::session_number()) return;
  core::log(core::LogLevel::Warn,
            concat("device() is the CPU: LibTorch has ", count, count == 1 ? " GPU" : " GPUs",
                   " here, but Horon can use none: ", why_not));
}

}  // namespace

void init(const InitOptions& options, std::string_view headers) {
  // Before anything is read from the options, whose fields may be others in those headers.
  require_headers_of_this_version(headers);
  if (is_initialized()) return;
  init_session(options);
  divide_cores();
  tell_of_binding();
}

c10::Device device(const ProcessSet& process_set) {
  const std::shared_ptr<ops::JobGpu> gpu = ops::gpu();
  const std::string why = ops::runtime().unavailable(process_set.id(), DeviceKind::Cuda);
  const bool libtorch_has_cuda = c10::impl::hasDeviceGuardImpl(c10::kCUDA);
  if (!gpu->any_device(process_set.ranks()) || !libtorch_has_cuda) {
    if (libtorch_has_cuda && gpu->owners().empty()) warn_of_unused_gpus(gpu->why_not());
    return c10::Device(c10::kCPU);
  }
  if (!why.empty()) {
    throw Error(ErrorCode::Config,
                concat("device(): ", why,
                       ". To train on the CPU, set CUDA_VISIBLE_DEVICES to an empty value"));
  }
  if (gpu->device() < 0) return c10::Device(c10::kCPU);  // others have one: a mixed set
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu->device()));
  c10::impl::getDeviceGuardImpl(c10::kCUDA)->setDevice(device);
  return device;
}

}  // namespace horon
