// Everything that one init() .. shutdown() owns, put together: MPI, the ranks of this host, ops,
// transport, the runtime.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/base/timeline.h"
#include "horon/core/bootstrap/mpi_bootstrap.h"
#include "horon/core/execution/op_table.h"
#include "horon/core/host/cpu_share.h"
#include "horon/core/runtime/runtime.h"
#include "horon/ops/communicator/communicator_maker.h"
#include "horon/ops/nccl/job_gpu.h"
#include "horon/ops/session/call_counts.h"
#include "horon/ops/session/process_sets.h"
#include "horon/ops/session/session.h"
#include "horon/ops/timing/job_constants.h"

namespace horon::ops {

class Job {
 public:
  // Collective over all ranks. If any rank has an error, every rank throws it and nothing is left
  // of the job; MPI has ended if Horon began it. Error(Config) if versions, knobs or sets differ.
  // `at_finalize`: see core::MpiLibrary; it may come during the call.
  static std::unique_ptr<Job> start(const InitOptions& options, void (*at_finalize)());
  // Call stop() first; otherwise the job is left as after a failure.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  core::Runtime& runtime() { return *runtime_; }
  // See ops::explain_selection.
  std::vector<std::string> explain(const ProcessSet& set, const core::BatchFacts& facts) const;
  // See ops::explain_choices_of_job.
  std::vector<std::string> explain_choices() const;
  // See ops::session_number().
  uint32_t number() const { return number_; }
  bool owns_mpi() const { return owns_mpi_; }
  ProcessSets& process_sets() { return *sets_; }
  CallCounts& call_counts() { return call_counts_; }
  core::TimelineSwitch& timeline() { return *timeline_; }

  const core::CpuShare& cpu_share() const { return cpu_share_; }
  const JobConstants& constants() const { return constants_; }
  const std::shared_ptr<JobGpu>& gpu() const { return gpu_; }
  // See running_job.h. Any thread. Throws Error(NotInitialized) after stop().
  std::shared_ptr<std::byte> allocate(size_t bytes);
  std::shared_ptr<std::byte> allocate_reused(size_t bytes) {
    return group_of_host()->allocate_reused(bytes);
  }
  // Any thread.
  Statistics statistics() const;

  // Serves the others until all ranks stop (Runtime::shutdown() has the limits), then gives
  // everything back but the runtime, which other threads may still ask and which refuses all calls
  // from now on. On the thread that made the job. Never throws.
  void stop();

 private:
  struct Knobs {
    core::Config config;
    std::optional<Error> fault;  // then `config` has the defaults
  };
  static Knobs read_knobs(const InitOptions& options);
  Job(const InitOptions& options, const Knobs& knobs, void (*at_finalize)());
  void compare_ranks(const InitOptions& options) const;
  void warn_of_serialized_mpi() const;
  void warn_of_gpus() const;
  void find_constants();
  Communicator& world() const;
  std::shared_ptr<core::LocalGroup> group_of_host() const;
  void start_runtime();
  void end_timeline();
  void give_back(bool in_use);
  core::WaitPolicy wait_policy() const;
  std::string_view path_between_gpus() const;  // as introduction() tells it
  std::string introduction() const;

  const uint32_t number_;
  std::unique_ptr<core::MpiLibrary> library_;
  std::unique_ptr<core::MpiBootstrap> bootstrap_;
  const core::Config config_;
  const bool owns_mpi_;
  core::CpuShare cpu_share_;
  JobConstants constants_;
  std::shared_ptr<JobGpu> gpu_;  // never null
  std::unique_ptr<CommunicatorMaker> maker_;
  mutable std::mutex world_mutex_;       // guards world_, which stop() resets
  std::shared_ptr<Communicator> world_;  // of all ranks
  std::shared_ptr<core::OpTable> op_table_;
  // Bytes from allocate() that are held now. Shared, since that memory may outlive the job.
  const std::shared_ptr<std::atomic<uint64_t>> bucket_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  std::shared_ptr<core::TimelineSwitch> timeline_;
  std::unique_ptr<ProcessSets> sets_;
  std::unique_ptr<core::Runtime> runtime_;
  CallCounts call_counts_;
};

}  // namespace horon::ops
