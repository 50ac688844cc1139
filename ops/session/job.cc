#include "horon/ops/session/job.h"

#include <algorithm>
#include <chrono>
#include <sched.h>
#include <utility>
#include <vector>

#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/base/version.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/execution/executor.h"
#include "horon/core/transport/make_transport.h"
#include "horon/core/transport/shared_memory_transport.h"
#include "horon/ops/builtin.h"

namespace horon::ops {
namespace {

using core::concat;

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

std::unique_ptr<core::LocalGroup> make_group(const core::Bootstrap& bootstrap,
                                             const core::Config& config) {
  const core::Topology& topology = bootstrap.topology();
  const int size = topology.local_size;
  if (!config.shared_memory) {
    return core::LocalGroup::create_unavailable(topology.local_rank, size, "HORON_SHARED_MEMORY=0");
  }
  const size_t area =
      round_up(core::SharedMemoryTransport::area_bytes(size)) + builtin_area_bytes(size);
  return core::LocalGroup::create(bootstrap, area);
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int host_count(const core::Topology& topology) {
  int hosts = 0;
  for (const int host : topology.host_of) hosts = std::max(hosts, host + 1);
  return hosts;
}

}  // namespace

// Before MPI: a knob says which ranks share a host. What is wrong with the knobs of one rank is
// told to all of them later.
Job::Knobs Job::read_knobs(const InitOptions& options) {
  Knobs knobs;
  try {
    knobs.config = core::Config::from_environment(options.set);
  } catch (const Error& error) {
    knobs.fault = error;
  }
  return knobs;
}

Job::Job(const InitOptions& options) : Job(options, read_knobs(options)) {}

Job::Job(const InitOptions& options, const Knobs& knobs)
    : library_(std::make_unique<core::MpiLibrary>()),
      bootstrap_(
          std::make_unique<core::MpiBootstrap>(*library_, options.mpi_comm, knobs.config.host_id)),
      config_(knobs.config),
      owns_mpi_(library_->owns_mpi()) {
  const int rank = bootstrap_->topology().rank;
  core::set_log(rank, core::LogLevel::Info);
  core::agree(*bootstrap_, library_->thread_fault());
  core::agree(*bootstrap_, knobs.fault);
  core::set_log(rank, core::parse_log_level(config_.log_level));
  compare_ranks();
  group_ = make_group(*bootstrap_, config_);
  communicator_ = std::make_unique<MpiCommunicator>(*bootstrap_);
  make_runtime();
  if (rank == 0) core::log(core::LogLevel::Info, introduction());
}

Job::~Job() { stop(); }

void Job::make_runtime() {
  const core::Topology& topology = bootstrap_->topology();
  std::byte* const area = group_->area();
  const size_t transport_bytes =
      round_up(core::SharedMemoryTransport::area_bytes(topology.local_size));
  op_table_ = std::make_shared<core::OpTable>(
      make_builtin_ops({.topology = &topology,
                        .config = &config_,
                        .local_group = group_.get(),
                        .area = area == nullptr ? nullptr : area + transport_bytes,
                        .mpi_communicator = communicator_->handle()}),
      config_.allreduce);

  std::shared_ptr<core::Timeline> timeline;
  if (!config_.timeline.empty()) {
    timeline = core::Timeline::open(config_.timeline, topology.rank, topology.size);
  }
  core::Executor::Parts execution;
  execution.rank = topology.rank;
  execution.size = topology.size;
  execution.ops = op_table_;
  execution.domains = make_builtin_domains(group_.get());
  execution.timeline = timeline;

  core::Runtime::Parts parts;
  parts.config = config_;
  parts.topology = topology;
  parts.transport = core::make_transport(*bootstrap_, *group_, area, wait_policy());
  parts.world.executor = std::make_unique<core::Executor>(std::move(execution));
  parts.make_set = [this](const std::vector<int>& ranks) { return make_set(ranks); };
  parts.timeline = std::move(timeline);
  runtime_ = std::make_unique<core::Runtime>(std::move(parts));
}

// On the runtime thread. The ranks of a set talk over MPI, also on one host.
core::SetResources Job::make_set(const std::vector<int>& ranks) const {
  const core::Topology& topology = bootstrap_->topology();
  core::SetResources resources;
  auto communicator = std::make_shared<MpiCommunicator>(*bootstrap_, ranks);
  BuiltinParts builtin;
  builtin.topology = &topology;
  builtin.config = &config_;
  builtin.mpi_communicator = communicator->handle();
  core::Executor::Parts execution;
  execution.rank = core::index_of(topology.rank, ranks);
  execution.size = static_cast<int>(ranks.size());
  execution.ranks = ranks;
  const std::string allreduce = config_.allreduce == "shm" ? "auto" : config_.allreduce;
  execution.ops = std::make_shared<core::OpTable>(make_builtin_ops(builtin), allreduce);
  execution.domains = make_builtin_domains(nullptr);
  resources.keep_alive = std::move(communicator);
  resources.executor = std::make_unique<core::Executor>(std::move(execution));
  return resources;
}

// Returns when all ranks have come here with the same `what`.
void Job::agree(const std::string& name, const std::string& what) {
  auto spec = std::make_shared<core::EntrySpec>();
  spec->kind = CollectiveKind::Barrier;
  spec->parts = {{what, {0}}};
  core::Submission submission;
  submission.name = name;
  submission.spec = std::move(spec);
  (void)runtime_->submit(std::move(submission))->get();
}

ProcessSet Job::add_process_set(std::vector<int> ranks) {
  const std::lock_guard lock(sets_mutex_);
  const uint32_t id = ++set_calls_;
  const std::string name = concat("horon.add_process_set.", id);
  std::sort(ranks.begin(), ranks.end());
  std::string fault;
  if (ranks.empty()) fault = "it has no ranks";
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end())
    fault = "a rank is there twice";
  const int size = bootstrap_->topology().size;
  if (!ranks.empty() && (ranks.front() < 0 || ranks.back() >= size)) {
    fault = concat("its ranks must be 0 to ", size - 1);
  }
  if (!fault.empty()) {
    fault = concat("add_process_set({", core::list_ranks(ranks), "}): ", fault);
    runtime_->refuse(name, fault);
    throw Error(ErrorCode::InvalidArgument, fault);
  }
  // Before: all ranks want the same set. After: nobody uses it before all have it.
  agree(name, concat("process set of ranks ", core::list_ranks(ranks)));
  runtime_->add_set(id, ranks);
  agree(concat(name, ".made"), "");
  sets_.emplace_back(id, std::move(ranks), bootstrap_->topology().rank);
  return sets_.back();
}

void Job::remove_process_set(const ProcessSet& set) {
  const std::lock_guard lock(sets_mutex_);
  const auto known = std::find_if(sets_.begin(), sets_.end(),
                                  [&](const ProcessSet& other) { return other.id() == set.id(); });
  const std::string name = concat("horon.remove_process_set.", set.id());
  if (known == sets_.end()) {
    const std::string fault =
        set.is_world() ? "remove_process_set(): the set of all ranks stays"
                       : concat("remove_process_set(): set ", set.id(), " has been removed before");
    throw Error(ErrorCode::InvalidArgument, fault);
  }
  agree(name, "");
  runtime_->remove_set(set.id());
  sets_.erase(known);
}

std::vector<ProcessSet> Job::process_sets() {
  const std::lock_guard lock(sets_mutex_);
  std::vector<ProcessSet> all = {ProcessSet()};
  all.insert(all.end(), sets_.begin(), sets_.end());
  return all;
}

std::shared_ptr<std::byte> Job::allocate(size_t bytes) {
  const std::lock_guard lock(group_mutex_);
  if (group_ == nullptr) {
    throw Error(ErrorCode::NotInitialized, "horon::shutdown() has been called");
  }
  return group_->allocate(bytes);
}

void Job::compare_ranks() const {
  core::require_same(*bootstrap_, "Horon's version", std::string(version()));
  std::string knobs;
  for (const std::string& line : config_.agreed_values()) knobs += line + "\n";
  core::require_same(*bootstrap_, "the configuration", knobs);
}

core::WaitPolicy Job::wait_policy() const {
  // A rank has two threads at least: the program's and the runtime's. A runtime thread that spins
  // takes the core from a program that was woken on the same one, so by default it looks again by
  // yielding, longer where cores are to spare.
  core::WaitPolicy policy;
  const bool spare_cores = usable_cores() >= 2 * bootstrap_->topology().local_size;
  policy.yields = spare_cores ? 100 : 20;
  policy.spin = std::chrono::microseconds(std::max<int64_t>(config_.spin_us, 0));
  return policy;
}

std::string Job::introduction() const {
  const core::Topology& topology = bootstrap_->topology();
  const int hosts = host_count(topology);
  const std::string shared =
      group_->available() ? "shared memory and MPI"
                          : concat("MPI (no shared memory: ", group_->unavailable_reason(), ")");
  return concat("Horon ", version(), ": ", topology.size, topology.size == 1 ? " rank" : " ranks",
                " on ", hosts, hosts == 1 ? " host" : " hosts", ", ", shared,
                topology.size > 1 ? ""
                                  : ". No launcher (mpirun, srun) started this job, or with one "
                                    "process only");
}

void Job::stop() {
  if (library_ == nullptr) return;
  const auto limit = std::chrono::duration<double>(config_.shutdown_timeout_s);
  runtime_->shutdown(std::chrono::duration_cast<std::chrono::nanoseconds>(limit));
  if (runtime_->fatal_error() != nullptr) library_->abandon();
  op_table_.reset();
  communicator_.reset();
  {
    const std::lock_guard lock(group_mutex_);
    group_.reset();
  }
  bootstrap_.reset();
  library_.reset();
}

}  // namespace horon::ops
