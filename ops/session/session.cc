#include "horon/ops/session/session.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <pthread.h>
#include <utility>

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/forked_child.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/base/version.h"
#include "horon/core/execution/executor.h"
#include "horon/core/runtime/handle.h"
#include "horon/ops/gpu_facts.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/session/job.h"
#include "horon/ops/session/running_job.h"

namespace horon {
namespace {

// The one process-wide object. On the heap and never destroyed: a static destructor must not run
// beside a live thread, nor a thread find a destroyed object.
struct Process {
  std::mutex mutex;  // of init() and shutdown()
  // Null before init() and after shutdown(). Each call of the library reads it, so without a lock.
  std::atomic<ops::Job*> job{nullptr};
  std::atomic<bool> runs{false};  // there is a job, and its end has not begun
  // Jobs that have ended are never deleted: other threads may hold a reference.
  std::vector<ops::Job*> ended;
  bool mpi_is_over = false;
  bool exit_handler_set = false;
};

Process& process() {
  static Process* const instance = new Process;
  return *instance;
}

ops::Job& job_of_this_process_or_its_parent() {
  ops::Job* const running = process().job.load(std::memory_order_acquire);
  if (running == nullptr) {
    throw Error(ErrorCode::NotInitialized,
                "no session is running: call init() first, and nothing after shutdown()");
  }
  return *running;
}

ops::Job& job() {
  core::refuse_forked_child();
  return job_of_this_process_or_its_parent();
}

// A forked worker of a loader reads its rank's share of the data. It has what that takes in memory.
const core::Topology& topology() {
  return job_of_this_process_or_its_parent().runtime().topology();
}

}  // namespace

int rank() { return topology().rank; }
int size() { return topology().size; }
int local_rank() { return topology().local_rank; }
int local_size() { return topology().local_size; }
int cross_rank() { return topology().cross_rank; }
int cross_size() { return topology().cross_size; }

bool is_homogeneous() {
  std::map<int, int> ranks_on;  // [host]
  for (const int host : topology().host_of) ++ranks_on[host];
  return std::all_of(ranks_on.begin(), ranks_on.end(),
                     [&](const auto& host) { return host.second == ranks_on.begin()->second; });
}

Statistics statistics() { return job().statistics(); }

void start_timeline(const std::string& path) { job().timeline().start(path); }
void stop_timeline() { job().timeline().stop(); }

int last_rank() { return core::log_rank(); }

bool is_initialized() {
  return !core::in_forked_child() && process().job.load(std::memory_order_acquire) != nullptr;
}

int join(const ProcessSet& process_set) {
  core::refuse_if_banned("join()");
  ops::Job& running = job();
  const uint32_t set = process_set.id();
  ops::CallCounts& counts = running.call_counts();
  std::shared_ptr<core::HandleState> call = counts.take_interrupted("join", set);
  if (call == nullptr) call = running.runtime().join(set);
  const int last = counts.get_or_keep("join", set, call).last_joined;
  counts.forget(set);
  return last;
}

ProcessSet add_process_set(std::vector<int> ranks) {
  core::refuse_if_banned("add_process_set()");
  return job().process_sets().add(std::move(ranks));
}

ProcessSet add_process_set_among(std::vector<int> ranks, uint32_t number) {
  core::refuse_if_banned("add_process_set_among()");
  return job().process_sets().add_among(std::move(ranks), number);
}

void order_sets_on_gpus() {
  core::refuse_if_banned("order_sets_on_gpus()");
  job().process_sets().order_on_gpus();
}

void remove_process_set(const ProcessSet& set) {
  core::refuse_if_banned("remove_process_set()");
  ops::Job& running = job();
  running.process_sets().remove(set);
  running.call_counts().drop(set.id());
}

void leave_process_set(const ProcessSet& set) {
  ops::Job& running = job();
  running.process_sets().leave(set);
  running.call_counts().drop(set.id());
}

std::vector<ProcessSet> process_sets() { return job().process_sets().all(); }

void shutdown() {
  if (core::in_forked_child()) return;  // the child of a fork ends nothing
  Process& here = process();
  // Before the mutex is taken: when init() fails it may finalise MPI, which calls this function
  // while init_session() holds the mutex.
  if (!here.runs.exchange(false)) return;
  ops::Job* ending = nullptr;
  {
    const std::lock_guard lock(here.mutex);
    ending = here.job.exchange(nullptr);
  }
  if (ending == nullptr) return;
  ending->stop();
  const std::lock_guard lock(here.mutex);
  here.ended.push_back(ending);
  here.mpi_is_over = ending->owns_mpi();
}

void init_session(const InitOptions& options, std::string_view headers) {
  // Checked before anything is read from the options, whose fields may differ in those headers.
  require_headers_of_this_version(headers);
  core::refuse_forked_child();
  Process& here = process();
  const std::lock_guard lock(here.mutex);
  if (here.job != nullptr) return;
  if (here.mpi_is_over) {
    throw Error(
        ErrorCode::Config,
        "init() can't be called again after shutdown(): MPI has ended with it, and starts only "
        "once in a process. Call MPI_Init_thread() yourself to keep MPI alive in between.");
  }
  here.job = ops::Job::start(options, [] { shutdown(); }).release();
  here.runs = true;
  if (here.exit_handler_set) return;
  here.exit_handler_set = true;
  std::atexit([] { shutdown(); });
}

std::vector<BuildFact> build_facts() {
  return {{"horon", std::string(version())},
          {"mpi", core::MpiLibrary::version()},
          {"cpu kernels", std::string(ops::kernel_instruction_set())},
          {"cuda", ops::cuda_fact()},
          {"nccl", ops::nccl_fact()},
          {"collectives",
           "allreduce, broadcast, allgather, reducescatter, alltoall, gather, scatter, barrier"}};
}

namespace ops {

uint32_t session_number() {
  const Job* const running = process().job.load(std::memory_order_acquire);
  return running == nullptr ? 0 : running->number();
}

core::Runtime& runtime() { return job().runtime(); }

CallCounts& call_counts() { return job().call_counts(); }
const core::CpuShare& cpu_share() { return job().cpu_share(); }
const JobConstants& constants() { return job().constants(); }
std::vector<std::string> explain_choices_of_job() { return job().explain_choices(); }
std::shared_ptr<JobGpu> gpu() { return job().gpu(); }

std::shared_ptr<std::byte> allocate_host(size_t bytes) { return job().allocate(bytes); }

std::shared_ptr<std::byte> allocate_host_reused(size_t bytes) {
  return job().allocate_reused(bytes);
}

std::vector<std::string> explain_selection(const ProcessSet& set, CollectiveKind kind,
                                           DeviceKind device) {
  core::BatchFacts facts;
  facts.kind = kind;
  facts.device = device;
  facts.count = 1 << 20;
  return job().explain(set, facts);
}

}  // namespace ops
}  // namespace horon
