#include "horon/ops/job.h"

#include <chrono>
#include <sched.h>
#include <utility>
#include <vector>

#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/base/version.h"
#include "horon/core/execution/executor.h"
#include "horon/core/transport/make_transport.h"
#include "horon/core/transport/shared_memory_transport.h"
#include "horon/ops/builtin.h"

namespace horon::ops {
namespace {

using core::concat;

size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

std::unique_ptr<core::LocalGroup> make_group(const core::MpiSession& session,
                                             const core::Config& config) {
  const core::Topology& topology = session.topology();
  const int size = topology.local_size;
  if (!config.shared_memory) {
    return core::LocalGroup::create_unavailable(topology.local_rank, size, "HORON_SHARED_MEMORY=0");
  }
  const size_t area =
      round_up(core::SharedMemoryTransport::area_bytes(size)) + builtin_area_bytes(size);
  return core::LocalGroup::create(topology.local_rank, size, area, session.host_exchange());
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

Job::Job(const InitOptions& options)
    : config_(core::Config::from_environment(options.set)),
      session_(std::make_unique<core::MpiSession>(options.mpi_comm)),
      owns_mpi_(session_->owns_mpi()) {
  core::set_log(session_->topology().rank, core::parse_log_level(config_.log_level));
  compare_ranks();
  group_ = make_group(*session_, config_);
  communicator_ = std::make_unique<MpiCommunicator>(*session_);
  make_runtime();
  if (session_->topology().rank == 0) core::log(core::LogLevel::Info, introduction());
}

Job::~Job() { stop(); }

void Job::make_runtime() {
  const core::Topology& topology = session_->topology();
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
  parts.transport = core::make_transport(*session_, *group_, area, wait_policy());
  parts.executor = std::make_unique<core::Executor>(std::move(execution));
  parts.timeline = std::move(timeline);
  runtime_ = std::make_unique<core::Runtime>(std::move(parts));
}

std::shared_ptr<std::byte> Job::allocate(size_t bytes) {
  const std::lock_guard lock(group_mutex_);
  if (group_ == nullptr) {
    throw Error(ErrorCode::NotInitialized, "horon::shutdown() has been called");
  }
  return group_->allocate(bytes);
}

void Job::compare_ranks() const {
  session_->require_same("Horon's version", std::string(version()));
  std::string knobs;
  for (const std::string& line : config_.agreed_values()) knobs += line + "\n";
  session_->require_same("the configuration", knobs);
}

core::WaitPolicy Job::wait_policy() const {
  // A rank has two threads at least: the program's and the runtime's. A runtime thread that spins
  // takes the core from a program that was woken on the same one, so by default it looks again by
  // yielding, longer where cores are to spare.
  core::WaitPolicy policy;
  const bool spare_cores = usable_cores() >= 2 * session_->topology().local_size;
  policy.yields = spare_cores ? 100 : 20;
  policy.spin = std::chrono::microseconds(std::max<int64_t>(config_.spin_us, 0));
  return policy;
}

std::string Job::introduction() const {
  const core::Topology& topology = session_->topology();
  const int hosts = host_count(topology);
  const std::string shared =
      group_->available() ? "shared memory and MPI"
                          : concat("MPI (no shared memory: ", group_->unavailable_reason(), ")");
  return concat("Horon ", version(), ": ", topology.size, topology.size == 1 ? " rank" : " ranks",
                " on ", hosts, hosts == 1 ? " host" : " hosts", ", ", shared);
}

void Job::stop() {
  if (session_ == nullptr) return;
  const auto limit = std::chrono::duration<double>(config_.shutdown_timeout_s);
  runtime_->shutdown(std::chrono::duration_cast<std::chrono::nanoseconds>(limit));
  if (runtime_->fatal_error() != nullptr) session_->abandon();
  op_table_.reset();
  communicator_.reset();
  {
    const std::lock_guard lock(group_mutex_);
    group_.reset();
  }
  session_.reset();
}

}  // namespace horon::ops
