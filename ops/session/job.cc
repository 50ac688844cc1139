#include "horon/ops/session/job.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <utility>
#include <vector>

#include "horon/core/base/current_error.h"
#include "horon/core/base/host_name.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/log.h"
#include "horon/core/base/round_up.h"
#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/base/version.h"
#include "horon/core/bootstrap/mpi_look.h"
#include "horon/core/execution/executor.h"
#include "horon/core/transport/make_transport.h"
#include "horon/core/transport/shared_memory_transport.h"
#include "horon/ops/builtin.h"
#include "horon/ops/cuda/nvtx_ranges.h"
#include "horon/ops/explain_choices.h"
#include "horon/ops/mpi/mpi_ops.h"
#include "horon/ops/session/memory_of_hosts.h"
#include "horon/ops/timing/host_timing.h"

namespace horon::ops {
namespace {

using core::concat;

// The shared area begins with the parts of the transport and of the measurement; the rest is for
// the collectives.
size_t transport_bytes(const core::Topology& topology) {
  return core::whole_cache_lines(core::SharedMemoryTransport::area_bytes(topology.local_size));
}

size_t timing_bytes() { return core::whole_cache_lines(HostTiming::area_bytes()); }

CommunicatorMaker::Options communicator_options(const core::Config& config) {
  const auto area_bytes = [config](const core::Topology& topology) {
    return builtin_area_bytes(topology, config);
  };
  return {.area_bytes = area_bytes,
          .shared_memory = config.shared_memory,
          .process_copies = config.process_copies == "off"
                                ? core::LocalGroup::ProcessCopies::Off
                                : core::LocalGroup::ProcessCopies::IfAllowed,
          .warn_after_s = config.stall_warn_s,
          .abort_after_s = config.stall_abort_s,
          .dead_after_s = config.dead_after_s};
}

std::string name_of_this_host(const core::Config& config) {
  const std::string name = core::host_name();
  return config.host_id.empty() ? name : concat(name, "/", config.host_id);
}

uint32_t next_number() {
  static std::atomic<uint32_t> jobs{0};
  return ++jobs;
}

}  // namespace

// Runs before MPI, since a knob says which ranks share a host. If one rank's knobs are wrong, all
// ranks are told later.
Job::Knobs Job::read_knobs(const InitOptions& options) {
  Knobs knobs;
  try {
    knobs.config = core::Config::from_environment(options.set);
    core::set_log(core::log_rank(), core::parse_log_level(knobs.config.log_level));
  } catch (const Error& error) {
    knobs.fault = error;
  }
  return knobs;
}

std::unique_ptr<Job> Job::start(const InitOptions& options, void (*at_finalize)()) {
  std::unique_ptr<Job> job(new Job(options, read_knobs(options), at_finalize));
  // Where one fails, the job ends on all ranks: they have the same lists, so it fails on all.
  for (const std::vector<int>& ranks : options.process_sets) (void)job->sets_->add(ranks);
  return job;
}

// Each step that can fail on one rank alone is agreed on, so that all ranks throw or none does, and
// nobody waits for a rank that has given up.
Job::Job(const InitOptions& options, const Knobs& knobs, void (*at_finalize)())
    : number_(next_number()),
      library_(std::make_unique<core::MpiLibrary>()),
      bootstrap_(core::meet_all_ranks(*library_, options.mpi_comm, knobs.config)),
      config_(knobs.config),
      owns_mpi_(library_->owns_mpi()) {
  const int rank = bootstrap_->topology().rank;
  core::set_log(rank, core::LogLevel::Info);
  core::agree(*bootstrap_, library_->thread_fault());
  core::agree(*bootstrap_, knobs.fault);
  core::set_log(rank, core::parse_log_level(config_.log_level));
  compare_ranks(options);
  cpu_share_ = core::find_cpu_share(*bootstrap_);
  if (owns_mpi_ && cpu_share_.has_too_few_cores()) core::let_mpi_yield();
  gpu_ = JobGpu::find(*bootstrap_, gpu_libraries(), config_.gpu_collectives, config_.shared_memory);
  core::run_on_all(*bootstrap_, [&] { core::MpiLibrary::at_finalize(at_finalize); });
  maker_ =
      std::make_unique<CommunicatorMaker>(*library_, *bootstrap_, communicator_options(config_));
  world_ = maker_->make_world(transport_bytes(bootstrap_->topology()) + timing_bytes());
  if (config_.shared_memory) {
    warn_of_missing_memory(*bootstrap_, name_of_this_host(config_), *world_);
  }
  find_constants();
  start_runtime();
  if (rank != 0) return;
  core::log(core::LogLevel::Info, introduction());
  warn_of_serialized_mpi();
  for (const std::string& name : config_.unknown()) {
    core::log(core::LogLevel::Warn, concat(name, " is not a knob of Horon, and is ignored"));
  }
  warn_of_gpus();
}

// Ranks of one host ring each other in shared memory. Elsewhere the runtime's thread looks for
// messages again and again, also while nothing is under way.
void Job::warn_of_serialized_mpi() const {
  if (maker_->threads_at_once() || world_->topology().size == 1) return;
  if (world_->topology().one_host() && world_->local_group().available()) return;
  core::log(core::LogLevel::Warn,
            "MPI runs with MPI_THREAD_SERIALIZED on some ranks, and Horon's own thread calls MPI "
            "at any time: make no call of MPI between horon::init() and horon::shutdown(), or ask "
            "MPI_Init_thread for MPI_THREAD_MULTIPLE");
}

void Job::warn_of_gpus() const {
  if (gpu_->owners().empty()) return;
  if (!gpu_->available()) {
    core::log(
        core::LogLevel::Warn,
        concat("tensors on GPUs are refused in collectives of all ranks: ", gpu_->unavailable()));
  }
  const bool owners_can = gpu_->unavailable(gpu_->owners()).empty();
  if (owners_can && !gpu_->uses_nccl() && config_.gpu_collectives != "host") {
    core::log(core::LogLevel::Warn, concat("collectives of tensors on GPUs are slow, since they go "
                                           "through the host: ",
                                           gpu_->nccl_unavailable()));
  }
  if (gpu_->available() && gpu_->uses_nccl() && asks_for_hierarchy(config_) &&
      !reduces_in_hierarchy(*world_, config_)) {
    core::log(
        core::LogLevel::Warn,
        concat("HORON_GPU_COLLECTIVES=hierarchical changes nothing for the set of all ranks: ",
               world_->topology().one_host() ? "all ranks are on one host"
                                             : "a host with several ranks has no shared memory"));
  }
}

Job::~Job() { stop(); }

void Job::find_constants() {
  MeasuredJob job;
  job.host_name = name_of_this_host(config_);
  core::LocalGroup& group = world_->local_group();
  if (group.available()) job.area = group.area() + transport_bytes(bootstrap_->topology());
  const bool may_copy = group.copies_between_processes() && group.local_rank() < 2;
  if (may_copy) job.peer_process = group.process_id(1 - group.local_rank());
  job.messages = [this] { return make_mpi_messages(world_->mpi()); };
  try {
    constants_ = find_job_constants(*bootstrap_, config_, job);
  } catch (const Error&) {
    library_->abandon();  // messages may still be under way to a rank that does not answer
    throw;
  }
  world_->set_constants(constants_.constants);
}

void Job::start_runtime() {
  const core::Topology& topology = bootstrap_->topology();
  core::Runtime::Parts parts;
  core::run_on_all(*bootstrap_, [&] {
    timeline_ = std::make_shared<core::TimelineSwitch>(topology.rank, topology.size, nvtx_ranges());
    if (!config_.timeline.empty()) timeline_->start(config_.timeline);
  });
  parts.timeline = timeline_;
  core::run_on_all(*bootstrap_, [&] {
    core::Executor::Parts execution = make_execution(*world_, config_, parts.timeline, gpu_);
    op_table_ = execution.ops;
    parts.config = config_;
    parts.topology = topology;
    if (gpu_->device() >= 0) parts.seat_visitor = gpu_;
    parts.world.executor = std::make_unique<core::Executor>(std::move(execution));
    parts.world.unavailable[static_cast<size_t>(DeviceKind::Cuda)] = gpu_->unavailable();
    parts.world.mixed[static_cast<size_t>(DeviceKind::Cuda)] = gpu_->mixed(world_->members());
    parts.world.gate = make_gate(*world_, config_);
    parts.world.reduce = make_eager_reduction(*world_, config_);
    const bool in_submit = config_.step_in_submit == "on";
    parts.step_in_submit =
        in_submit || (config_.step_in_submit == "auto" && !cpu_share_.has_spare_core());
    sets_ = std::make_unique<ProcessSets>(
        ProcessSets::Parts{maker_.get(), world_.get(), &config_, parts.timeline, gpu_, number_});
    parts.starts_closed = true;  // with MPI_THREAD_SERIALIZED, one thread at a time calls MPI
    parts.make_set = [this](const std::vector<int>&) { return sets_->make_resources(); };
    // Weak: the runtime is kept after the end of the job, which frees the communicator.
    parts.make_pair = [kept = std::weak_ptr<Communicator>(world_), config = config_,
                       timeline = parts.timeline, gpu = gpu_](const std::vector<int>& pair) {
      const std::shared_ptr<Communicator> world = kept.lock();
      return core::SetResources(world, std::make_unique<core::Executor>(make_pair_execution(
                                           *world, pair, config, timeline, gpu)));
    };
    parts.devices_of_pair = [gpu = gpu_](const std::vector<int>& pair) {
      return devices_of_pair(pair, *gpu);
    };
  });
  core::run_on_all(*bootstrap_, [&] {
    core::LocalGroup& group = world_->local_group();
    parts.transport = core::make_transport(*bootstrap_, group, group.area(), wait_policy());
  });
  try {
    core::run_on_all(*bootstrap_,
                     [&] { runtime_ = std::make_unique<core::Runtime>(std::move(parts)); });
  } catch (const Error& error) {
    // If the thread runs here, it may have sent messages that another rank will never receive.
    if (runtime_ != nullptr) {
      runtime_->fail(error);  // else shutdown() would wait for ranks that have no runtime
      runtime_->shutdown(std::chrono::nanoseconds(0));
    }
    library_->abandon();
    throw;
  }
  sets_->set_runtime(*runtime_);
  runtime_->open();
}

// world_mutex_ must be held, also while the world is used: stop() ends it on its own thread.
Communicator& Job::world() const {
  if (world_ == nullptr) {
    throw Error(ErrorCode::NotInitialized, "horon::shutdown() has been called");
  }
  return *world_;
}

// Allocating takes long, and a signal handler may call exit() in it. So it is not done under the
// mutex.
std::shared_ptr<core::LocalGroup> Job::group_of_host() const {
  const std::lock_guard lock(world_mutex_);
  return world().shared_local_group();
}

std::shared_ptr<std::byte> Job::allocate(size_t bytes) {
  std::shared_ptr<std::byte> memory = group_of_host()->allocate(bytes);
  std::byte* const data = memory.get();
  *bucket_bytes_ += bytes;
  return {data, [memory = std::move(memory), bytes, counted = bucket_bytes_](std::byte*) mutable {
            memory.reset();
            *counted -= bytes;
          }};
}

Statistics Job::statistics() const {
  Statistics statistics = runtime_->statistics();
  statistics.bucket_bytes = *bucket_bytes_;
  return statistics;
}

std::vector<std::string> Job::explain(const ProcessSet& set, const core::BatchFacts& facts) const {
  if (!set.is_world()) return sets_->explain(set, facts);
  const std::lock_guard lock(world_mutex_);
  (void)world();
  return op_table_->explain(facts);
}

std::vector<std::string> Job::explain_choices() const {
  const std::lock_guard lock(world_mutex_);
  return ops::explain_choices(world(), config_);
}

void Job::compare_ranks(const InitOptions& options) const {
  core::require_same(*bootstrap_, "Horon's version", std::string(version()));
  // Elements travel as bytes.
  core::require_same(*bootstrap_, "the byte order",
                     std::endian::native == std::endian::little ? "little-endian" : "big-endian");
  std::string knobs;
  for (const std::string& line : config_.agreed_values()) knobs += line + "\n";
  try {
    core::require_same(*bootstrap_, "the configuration", knobs);
  } catch (const Error& error) {
    if (bootstrap_->topology().cross_size == 1) throw;
    throw Error(error.code(),
                concat(error.what(), ": mpirun passes a variable to other hosts only ",
                       "with -x NAME; horonrun passes all of HORON_*"));
  }
  std::string sets;
  for (std::vector<int> ranks : options.process_sets) {
    std::sort(ranks.begin(), ranks.end());
    sets += concat("{", exact_list(ranks), "}\n");
  }
  core::require_same(*bootstrap_, "InitOptions::process_sets", sets);
}

core::WaitPolicy Job::wait_policy() const {
  // No spinning by default: a yield costs little while this thread has the core to itself, and
  // beside another process, on any core of the host, spinning makes a small collective six times
  // slower.
  core::WaitPolicy policy;
  policy.spin = std::chrono::microseconds(config_.spin_us);
  return policy;
}

std::string_view Job::path_between_gpus() const {
  if (!gpu_->available()) return "";
  if (!gpu_->uses_nccl()) return ", GPUs through the host";
  return reduces_in_hierarchy(*world_, config_) ? ", GPUs by NCCL within hosts and MPI between them"
                                                : ", NCCL between GPUs";
}

std::string Job::introduction() const {
  const core::Topology& topology = bootstrap_->topology();
  const int hosts = topology.host_count();
  return concat("Horon ", version(), ": ", topology.size, topology.size == 1 ? " rank" : " ranks",
                " on ", hosts, hosts == 1 ? " host" : " hosts", ", ", memory_text(*world_),
                path_between_gpus(), topology.size > 1 ? "" : core::MpiLibrary::remark_on_launch());
}

void Job::stop() {
  if (library_ == nullptr) return;
  const auto limit = std::chrono::duration<double>(config_.shutdown_timeout_s);
  const auto limit_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(limit);
  if (sets_->refuse_calls()) {
    runtime_->fail(
        Error(ErrorCode::OperationFailed,
              concat("rank ", bootstrap_->topology().rank, ": shutdown() was called ",
                     "while another thread was making a process set, and MPI was given up")));
  }
  runtime_->shutdown(limit_ns, limit_ns);
  if (!runtime_->left_from_within()) end_timeline();
  // Before anything is given back: if a member has died, no rank may wait for it in MPI.
  if (runtime_->left_from_within() || runtime_->fatal_error() != nullptr) library_->abandon();
  const bool in_use = runtime_->left_from_within() || !sets_->close();
  if (in_use) library_->abandon();
  give_back(in_use);
}

void Job::end_timeline() {
  try {
    timeline_->stop();  // else its file would stay open: jobs are kept after their end
  } catch (...) {
    core::log(core::LogLevel::Warn,
              concat("the timeline's end is lost: ", core::current_error().what()));
  }
}

// `in_use`: a thread of the program is still making a process set with these, or has called exit()
// in the middle of a collective.
void Job::give_back(bool in_use) {
  std::shared_ptr<Communicator> world;
  {
    const std::lock_guard lock(world_mutex_);
    op_table_.reset();
    world = std::move(world_);
  }
  // An abandoned call may still be inside MPI, and use the bootstrap and the library.
  const bool left_behind = library_->abandoned();
  if (in_use) {
    core::keep_for_ever(world);
    core::keep_for_ever(std::move(maker_));
  }
  world.reset();
  maker_.reset();
  if (left_behind) core::keep_for_ever(std::move(bootstrap_));
  bootstrap_.reset();
  if (left_behind) core::keep_for_ever(std::move(library_));
  library_.reset();
}

}  // namespace horon::ops
