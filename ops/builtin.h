// The collectives of this build, in order of preference. The only place that knows them all.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/executor.h"
#include "horon/core/execution/memory_domain.h"
#include "horon/core/host/local_group.h"
#include "horon/core/negotiation/gate.h"
#include "horon/core/runtime/rank_devices.h"
#include "horon/ops/communicator/communicator.h"
#include "horon/ops/nccl/job_gpu.h"

namespace horon::ops {

// How much shared memory the ops and the gate of a communicator need on each host. `topology` is
// the communicator's.
size_t builtin_area_bytes(const core::Topology& topology, const core::Config& config);

// The gate at which the members of a set on this host start frozen entries together; null unless
// the members of each host share memory. The same answer on all members.
std::unique_ptr<core::Gate> make_gate(const Communicator& communicator, const core::Config& config);

// What makes the result of an allreduce whose elements travel with the votes
// (core::SetResources::reduce): the same bits as the op of this set. Empty if that is not
// hier_allreduce. The same answer on all members.
std::function<void(const core::Batch&, std::span<const std::byte* const>)> make_eager_reduction(
    const Communicator& communicator, const core::Config& config);

// Every member makes the same list, from facts that are the same on all of them. The communicator
// must outlive the ops. `scratch`: for what they convert and stage. `gpu`: null, or each member has
// a GPU that collectives reach; null: no ops on device memory.
std::vector<std::unique_ptr<core::CollectiveOp>> make_builtin_ops(
    const Communicator& communicator, const core::Config& config,
    const std::shared_ptr<core::ScratchPool>& scratch,
    const std::shared_ptr<JobGpu>& gpu = nullptr);

// Whether the members' GPUs, if NCCL connects them, reduce by NCCL within hosts and by messages
// between hosts. The user must ask for it, there must be several hosts, and every host with several
// members must have shared memory. The first function checks the user's part alone.
bool asks_for_hierarchy(const core::Config& config);
bool reduces_in_hierarchy(const Communicator& communicator, const core::Config& config);

// One domain for each kind of memory. `local_group` may be null; `gpu` as above.
std::vector<std::unique_ptr<core::MemoryDomain>> make_builtin_domains(
    core::LocalGroup* local_group, const std::shared_ptr<JobGpu>& gpu = nullptr);

// What the batches of a set (the world's or another's) run on: the ops on its communicator, which
// must outlive them, and the memory; on devices too if the members can use theirs together
// (JobGpu::unavailable()). The timeline and `job_gpu` may be null. Throws Error(Config) if the knob
// HORON_ALLREDUCE names an op that this set does not have.
core::Executor::Parts make_execution(const Communicator& communicator, const core::Config& config,
                                     const std::shared_ptr<core::Timeline>& timeline,
                                     const std::shared_ptr<JobGpu>& job_gpu = nullptr);

// What the two ranks of a pair send and receive on (core/runtime/pair_sets.h): MPI. Tensors on GPUs
// go by way of pinned memory, even where collectives use NCCL: its messages would have to keep one
// order with all collectives on each device, but ranks send at any time. The communicator of all
// ranks must outlive it. Local.
core::Executor::Parts make_pair_execution(const Communicator& world, const std::vector<int>& pair,
                                          const core::Config& config,
                                          const std::shared_ptr<core::Timeline>& timeline,
                                          const std::shared_ptr<JobGpu>& job_gpu);
// The devices whose tensors this rank can send and receive in that pair.
core::RankDevices devices_of_pair(const std::vector<int>& pair, const JobGpu& job_gpu);

}  // namespace horon::ops
