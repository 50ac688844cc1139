#include "horon/ops/builtin.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "horon/core/base/rank_names.h"
#include "horon/core/base/round_up.h"
#include "horon/core/base/text.h"
#include "horon/core/execution/op_table.h"
#include "horon/core/negotiation/ring_gate.h"
#include "horon/core/runtime/submission.h"
#include "horon/ops/adasum/adasum_allreduce.h"
#include "horon/ops/choice/algorithm.h"
#include "horon/ops/cuda/capture_memory.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/cuda/pinned_memory.h"
#include "horon/ops/cuda/staged_op.h"
#include "horon/ops/hierarchical/eager_reduction.h"
#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/hierarchical/hosts_exchange.h"
#include "horon/ops/hierarchical/message_exchange.h"
#include "horon/ops/hierarchical/wire_type.h"
#include "horon/ops/hierarchical_gpu/nccl_hier_allreduce.h"
#include "horon/ops/host/host_memory.h"
#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/ops/host/shared_memory_exchange.h"
#include "horon/ops/mpi/mpi_ops.h"
#include "horon/ops/nccl/nccl_ops.h"
#include "horon/ops/plan_barrier.h"

namespace horon::ops {
namespace {

bool shares_memory(const Communicator& communicator, const core::Config& config) {
  return config.shared_memory && communicator.topology().one_host() &&
         communicator.local_group().available();
}

bool wants_gate(const core::Topology& topology, const core::Config& config) {
  const bool alone = topology.size < 2;  // nobody to send a message to
  return config.freeze && config.shared_memory && !alone;
}

// The parts of the area. On one host: the allreduce's, the exchange's, and the gate's, if there is
// one. With several hosts: those of the allreduce and of the exchange between hosts, that of the
// allreduce on GPUs between hosts, if it is asked for, and the gate's.
size_t exchange_offset(int local_size) {
  return core::whole_cache_lines(SharedMemoryAllreduce::area_bytes(local_size));
}
size_t hosts_exchange_offset(const core::Topology& topology) {
  return core::whole_cache_lines(HierarchicalAllreduce::area_bytes(topology));
}
size_t gpus_offset(const core::Topology& topology) {
  return hosts_exchange_offset(topology) +
         core::whole_cache_lines(HostsExchange::area_bytes(topology));
}
size_t gate_offset(const core::Topology& topology, const core::Config& config) {
  if (!topology.one_host()) {
    return gpus_offset(topology) +
           (asks_for_hierarchy(config)
                ? core::whole_cache_lines(NcclHierAllreduce::area_bytes(topology))
                : 0);
  }
  return exchange_offset(topology.local_size) +
         core::whole_cache_lines(BlockExchange::area_bytes(topology.local_size));
}

void add_shared_memory_ops(const Communicator& communicator, const core::Config& config,
                           std::vector<std::unique_ptr<core::CollectiveOp>>& ops) {
  core::LocalGroup& group = communicator.local_group();
  ops.push_back(std::make_unique<SharedMemoryAllreduce>(group, communicator.area(),
                                                        communicator.constants()));
  const auto exchange = std::make_shared<BlockExchange>(
      group, communicator.area() + exchange_offset(group.local_size()),
      copies_by_kernel(config.process_copies, communicator.constants()));
  for (const CollectiveKind kind :
       {CollectiveKind::Broadcast, CollectiveKind::Allgather, CollectiveKind::Reducescatter,
        CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
    ops.push_back(std::make_unique<SharedMemoryExchange>(exchange, kind));
  }
}

// If the ranks of some host can't map each other's memory, the ops that need shared memory are left
// out, and those on MPI take their place.
bool spans_hosts(const Communicator& communicator) {
  return !communicator.topology().one_host() && communicator.all_reach_their_hosts();
}

// All but the messages. The area begins with the part of the allreduce on host memory.
BetweenHosts between_hosts(const Communicator& communicator, const core::Config& config,
                           const std::shared_ptr<core::ScratchPool>& scratch) {
  BetweenHosts parts;
  parts.topology = communicator.topology();
  parts.scratch = scratch;
  parts.group = &communicator.local_group();
  parts.area = communicator.area();
  parts.wire_type = wire_type_named(config.wire_dtype);
  parts.constants = communicator.constants();
  return parts;
}

// The first `of_host` ops once more, for tensors on GPUs.
void add_staged_ops(size_t of_host, std::vector<std::unique_ptr<core::CollectiveOp>>& ops) {
  for (size_t i = 0; i < of_host; ++i) ops.push_back(std::make_unique<StagedOp>(*ops[i]));
}

std::unique_ptr<core::MemoryDomain> make_pinned_memory(const std::shared_ptr<JobGpu>& gpu) {
  return std::make_unique<PinnedMemory>(
      gpu->device(), [gpu] { return gpu->cuda(); }, [gpu] { return gpu->is_open(); });
}

core::CollectiveOp* find_op(const std::vector<std::unique_ptr<core::CollectiveOp>>& ops,
                            std::string_view name) {
  for (const auto& op : ops) {
    if (op->name() == name) return op.get();
  }
  return nullptr;
}

// At least as long as the longest fused batch, in bytes.
int64_t fusion_bytes(const core::Config& config) {
  return std::max(config.fusion_bytes_max, core::Config().fusion_bytes_max);
}

// Bytes of memory that is registered with NCCL. It is of no use to one rank alone, nor to ranks
// whose packed tensors the host carries between hosts.
size_t window_bytes(const Communicator& communicator, const core::Config& config) {
  const bool wanted = config.nccl_register == "auto" && communicator.topology().size > 1 &&
                      !reduces_in_hierarchy(communicator, config);
  constexpr int64_t kPage = 2 << 20;  // of NcclApi::allocate()
  return wanted ? static_cast<size_t>(core::round_up(fusion_bytes(config), kPage)) : 0;
}

// NCCL's communicator is made by way of the set's MPI, whose ops are in the list.
void add_nccl_ops(const Communicator& communicator, const core::Config& config,
                  const std::shared_ptr<JobGpu>& gpu,
                  std::vector<std::unique_ptr<core::CollectiveOp>>& ops) {
  const bool beside_halves = gpu->reduces_in_halves();
  // What the host drives may have to wait for the device: for tensors, for packing, or for memory
  // to be pinned. So what follows it may come late, and must not hold an earlier place in the
  // order.
  const bool may_come_late = gpu->stages() || gpu->host_drives_allreduce();
  NcclCommunicator::Parts parts;
  std::unique_ptr<LaunchTurn> turn;
  parts.gpu = gpu;
  parts.size = communicator.topology().size;
  parts.rank = communicator.topology().rank;
  parts.members = core::name_ranks(communicator.members());
  if (parts.size > 1) {
    core::CollectiveOp* const allreduce = find_op(ops, "mpi_allreduce");
    if (allreduce == nullptr) return;
    parts.id_exchange = std::make_unique<AllreduceNcclId>(*allreduce, parts.rank == 0);
    parts.vote = std::make_unique<MembersVote>(*allreduce);
    parts.window_bytes = window_bytes(communicator, config);
    turn = std::make_unique<LaunchTurn>(
        gpu->launch_order(), LaunchLine{communicator.id()}, *allreduce,
        may_come_late ? LaunchTurn::Propose::WhenAllHaveCome : LaunchTurn::Propose::AtOnce);
  }
  // The world has to keep an order once there is something else.
  const bool ordered = communicator.id() != core::kWorldSet || beside_halves;
  const auto line = std::make_shared<NcclLine>(std::make_shared<NcclCommunicator>(std::move(parts)),
                                               std::move(turn), ordered);
  for (auto& op : make_nccl_ops(line, gpu->host_drives_allreduce())) ops.push_back(std::move(op));
}

void add_nccl_hier_allreduce(const Communicator& communicator, const core::Config& config,
                             const std::shared_ptr<core::ScratchPool>& scratch,
                             const std::shared_ptr<JobGpu>& gpu,
                             std::vector<std::unique_ptr<core::CollectiveOp>>& ops) {
  BetweenHosts parts = between_hosts(communicator, config, scratch);
  parts.messages = make_mpi_messages_beside(communicator.mpi());
  if (parts.area != nullptr) parts.area += gpus_offset(communicator.topology());
  ops.push_back(std::make_unique<NcclHierAllreduce>(
      gpu, parts, communicator.id(), core::name_ranks(communicator.members_of_this_host())));
}

void add_exchange_between_hosts(const std::shared_ptr<ExchangeMachine>& machine,
                                std::initializer_list<CollectiveKind> kinds,
                                std::vector<std::unique_ptr<core::CollectiveOp>>& ops) {
  for (const CollectiveKind kind : kinds) {
    ops.push_back(std::make_unique<HierarchicalExchange>(machine, kind));
  }
}

void add_ops_between_hosts(const Communicator& communicator, const core::Config& config,
                           const std::shared_ptr<core::ScratchPool>& scratch,
                           const std::shared_ptr<Messages>& messages,
                           std::vector<std::unique_ptr<core::CollectiveOp>>& ops) {
  const core::Topology& topology = communicator.topology();
  if (spans_hosts(communicator)) {
    BetweenHosts parts = between_hosts(communicator, config, scratch);
    parts.messages = messages;
    ops.push_back(std::make_unique<HierarchicalAllreduce>(parts));
    if (parts.area != nullptr) parts.area += hosts_exchange_offset(topology);
    add_exchange_between_hosts(
        std::make_shared<HostsExchange>(parts),
        {CollectiveKind::Broadcast, CollectiveKind::Allgather, CollectiveKind::Reducescatter}, ops);
  }
  add_exchange_between_hosts(
      std::make_shared<MessageExchange>(messages, topology.rank, topology.size),
      {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}, ops);
}

// "the process set of ranks 0 and 1, on one host,". A set that is being made has no number for
// the program yet.
std::string who_runs_on(const Communicator& communicator) {
  const int hosts = communicator.topology().host_count();
  const std::string who =
      communicator.id() == core::kWorldSet
          ? "this job"
          : core::concat("the process set of ", core::name_ranks(communicator.members()));
  return core::concat(who, hosts == 1 ? ", on one host," : core::concat(", on ", hosts, " hosts,"));
}

std::shared_ptr<core::ScratchPool> make_scratch(
    std::vector<std::unique_ptr<core::MemoryDomain>> domains, const core::Config& config) {
  // One batch is packed while another travels.
  return std::make_shared<core::ScratchPool>(std::move(domains),
                                             2 * static_cast<size_t>(fusion_bytes(config)));
}

}  // namespace

bool asks_for_hierarchy(const core::Config& config) {
  return config.gpu_collectives == "hierarchical";
}

bool reduces_in_hierarchy(const Communicator& communicator, const core::Config& config) {
  return asks_for_hierarchy(config) && communicator.mpi() != nullptr && spans_hosts(communicator);
}

size_t builtin_area_bytes(const core::Topology& topology, const core::Config& config) {
  return gate_offset(topology, config) +
         (wants_gate(topology, config) ? core::RingGate::bytes(topology.local_size) : 0);
}

std::unique_ptr<core::Gate> make_gate(const Communicator& communicator,
                                      const core::Config& config) {
  if (!wants_gate(communicator.topology(), config) || !communicator.all_share_memory()) {
    return nullptr;
  }
  core::LocalGroup& group = communicator.local_group();
  return std::make_unique<core::RingGate>(
      communicator.area() + gate_offset(communicator.topology(), config), group.local_rank(),
      group.local_size(),
      [shared = communicator.shared_local_group()] { shared->ring_all_others(); },
      [shared = communicator.shared_local_group()] { shared->doorbell(0).ring(); });
}

std::function<void(const core::Batch&, std::span<const std::byte* const>)> make_eager_reduction(
    const Communicator& communicator, const core::Config& config) {
  const bool chosen = config.allreduce == "auto" || config.allreduce == "hier";
  if (!chosen || !spans_hosts(communicator)) return nullptr;
  return EagerReduction(communicator.topology());
}

std::vector<std::unique_ptr<core::CollectiveOp>> make_builtin_ops(
    const Communicator& communicator, const core::Config& config,
    const std::shared_ptr<core::ScratchPool>& scratch, const std::shared_ptr<JobGpu>& gpu) {
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
  if (shares_memory(communicator, config)) add_shared_memory_ops(communicator, config, ops);
  if (communicator.mpi() != nullptr) {
    const core::Topology& topology = communicator.topology();
    const std::shared_ptr<Messages> messages = make_mpi_messages(communicator.mpi());
    if (!topology.one_host()) {
      add_ops_between_hosts(communicator, config, scratch, messages, ops);
    }
    for (auto& op : make_mpi_ops(communicator.mpi(), scratch)) ops.push_back(std::move(op));
    ops.push_back(
        std::make_unique<AdasumAllreduce>(messages, scratch, topology.rank, topology.size));
  }
  const size_t of_host = ops.size();
  if (gpu != nullptr && gpu->uses_nccl()) {
    if (reduces_in_hierarchy(communicator, config)) {
      add_nccl_hier_allreduce(communicator, config, scratch, gpu, ops);
    }
    add_nccl_ops(communicator, config, gpu, ops);
  }
  // All that NCCL does not have, too.
  if (gpu != nullptr && gpu->stages()) add_staged_ops(of_host, ops);
  ops.push_back(std::make_unique<PlanBarrier>());
  return ops;
}

std::vector<std::unique_ptr<core::MemoryDomain>> make_builtin_domains(
    core::LocalGroup* local_group, const std::shared_ptr<JobGpu>& gpu) {
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(local_group));
  if (gpu != nullptr && gpu->uses_nccl()) {
    domains.push_back(std::make_unique<CudaMemory>(
        gpu->device(), [gpu] { return gpu->cuda(); }, [gpu] { return gpu->is_open(); }));
    domains.push_back(std::make_unique<CaptureMemory>(gpu->device(), gpu->capture_queue(),
                                                      [gpu] { return gpu->is_open(); }));
  }
  if (gpu != nullptr && gpu->stages()) domains.push_back(make_pinned_memory(gpu));
  return domains;
}

core::RankDevices devices_of_pair(const std::vector<int>& pair, const JobGpu& job_gpu) {
  core::RankDevices devices = core::host_alone();
  core::RankDevice& gpu = devices[static_cast<size_t>(DeviceKind::Cuda)];
  gpu.unavailable = job_gpu.unavailable(pair);
  gpu.mixed = job_gpu.mixed(pair);
  if (gpu.unavailable.empty()) gpu.index = job_gpu.device();
  return devices;
}

core::Executor::Parts make_pair_execution(const Communicator& world, const std::vector<int>& pair,
                                          const core::Config& config,
                                          const std::shared_ptr<core::Timeline>& timeline,
                                          const std::shared_ptr<JobGpu>& job_gpu) {
  core::Executor::Parts parts;
  parts.rank = pair.front() == world.topology().rank ? 0 : 1;
  parts.size = 2;
  parts.ranks = pair;
  std::vector<std::unique_ptr<core::MemoryDomain>> domains = make_builtin_domains(nullptr);
  const bool reaches_gpus = job_gpu->unavailable(pair).empty();
  if (reaches_gpus && job_gpu->device() >= 0) domains.push_back(make_pinned_memory(job_gpu));
  parts.scratch = make_scratch(std::move(domains), config);
  const int peer = pair[parts.rank == 0 ? 1 : 0];
  auto ops = make_mpi_pair_ops(world.mpi(), parts.scratch, parts.rank, peer);
  if (reaches_gpus && !job_gpu->mixed(pair)) add_staged_ops(ops.size(), ops);
  parts.ops = std::make_shared<core::OpTable>(std::move(ops), "auto");
  parts.timeline = timeline;
  return parts;
}

core::Executor::Parts make_execution(const Communicator& communicator, const core::Config& config,
                                     const std::shared_ptr<core::Timeline>& timeline,
                                     const std::shared_ptr<JobGpu>& job_gpu) {
  const std::vector<int>& members = communicator.members();
  const bool mixed = job_gpu != nullptr && job_gpu->mixed(members);
  const bool all_on_gpus = job_gpu != nullptr && !mixed && job_gpu->unavailable(members).empty();
  const std::shared_ptr<JobGpu> gpu = all_on_gpus ? job_gpu : nullptr;
  core::Executor::Parts parts;
  parts.rank = communicator.topology().rank;
  parts.size = communicator.topology().size;
  parts.ranks = members;
  auto domains = make_builtin_domains(&communicator.local_group(), gpu);
  if (mixed && job_gpu->device() >= 0) domains.push_back(make_pinned_memory(job_gpu));
  parts.scratch = make_scratch(std::move(domains), config);
  parts.ops =
      std::make_shared<core::OpTable>(make_builtin_ops(communicator, config, parts.scratch, gpu),
                                      config.allreduce, who_runs_on(communicator));
  parts.timeline = timeline;
  return parts;
}

}  // namespace horon::ops
