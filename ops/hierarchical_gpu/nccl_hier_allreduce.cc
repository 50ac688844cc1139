#include "horon/ops/hierarchical_gpu/nccl_hier_allreduce.h"

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "horon/core/base/round_up.h"
#include "horon/core/base/text.h"
#include "horon/ops/hierarchical/lane_messages.h"
#include "horon/ops/hierarchical_gpu/host_shards.h"
#include "horon/ops/host/scratch_loan.h"
#include "horon/ops/nccl/nccl_reduction.h"

namespace horon::ops {
namespace {

using core::Progress;

std::vector<std::unique_ptr<core::MemoryDomain>> pinned_memory(const std::shared_ptr<JobGpu>& gpu) {
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<PinnedMemory>(gpu->device(), [gpu] { return gpu->cuda(); }));
  return domains;
}

// The same lane's ranks of all hosts, as hosts of one rank each.
BetweenHosts of_lane(const BetweenHosts& all, const HostsLayout& layout) {
  std::vector<int> hosts(layout.peers.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  BetweenHosts lane;
  lane.topology = core::make_topology(layout.host, hosts);
  lane.messages = std::make_shared<LaneMessages>(all.messages, layout.peers);
  lane.scratch = all.scratch;
  lane.wire_type = all.wire_type;
  lane.constants = all.constants;
  return lane;
}

size_t turns_bytes(int local_size) {
  return core::whole_cache_lines(SharedMemoryAllreduce::area_bytes(local_size));
}

class Nothing final : public core::InFlight {
 public:
  Progress step() override { return Progress::Done; }
};

}  // namespace

// One batch on this rank.
class NcclHierAllreduce::Flight final : public core::InFlight {
 public:
  Flight(NcclHierAllreduce& op, core::Batch batch)
      : op_(op),
        batch_(std::move(batch)),
        input_(batch_.input),
        reduction_(nccl_reduction(batch_)),
        shards_(batch_.count, batch_.dtype, op.layout_.lanes),
        mine_(shards_.of(op.layout_.local_rank)),
        pinned_(&op.pinned_, DeviceKind::Cuda) {
    if (!alone()) {
      reduce_turn_ = op_.reduce_line_->take_turn();
      gather_turn_ = op_.gather_line_->take_turn();
    }
    if (mine_.count > 0) start_between_hosts();
  }

  Progress step() override {
    for (;;) {
      switch (stage_) {
        case Stage::Reducing:
          if (!alone() && !op_.reduce_line_->may_call(reduce_turn_)) return Progress::Polling;
          reduce();
          stage_ = Stage::Reduced;
          break;
        case Stage::Reduced:
          if (!alone() && !op_.reduce_line_->is_enqueued()) return Progress::Polling;
          if (mine_.count > 0) copy_to_host();
          stage_ = Stage::LeavingDevice;
          break;
        case Stage::LeavingDevice:
          if (!happened()) return Progress::Polling;
          stage_ = Stage::BetweenHosts;
          break;
        case Stage::BetweenHosts:
          if (between_ != nullptr) {
            if (const Progress progress = between_->step(); progress != Progress::Done) {
              check();
              return progress;
            }
            between_.reset();
          }
          stage_ = Stage::Gathering;
          break;
        case Stage::Gathering:
          if (!alone() && !op_.gather_line_->may_call(gather_turn_)) return Progress::Polling;
          gather();
          stage_ = Stage::Gathered;
          break;
        case Stage::Gathered:
          if (!alone() && !op_.gather_line_->is_enqueued()) return Progress::Polling;
          event_ = op_.queue_.record();
          stage_ = Stage::EnteringDevice;
          break;
        case Stage::EnteringDevice:
          if (!happened()) return Progress::Polling;
          pinned_.give_back();
          return Progress::Done;
      }
    }
  }

 private:
  enum class Stage : uint8_t {
    Reducing,
    Reduced,  // the calls have been made
    LeavingDevice,
    BetweenHosts,
    Gathering,
    Gathered,
    EnteringDevice,
  };

  bool alone() const { return op_.host_ == nullptr; }
  void check() const {
    if (!alone()) op_.host_->check();
  }
  bool happened() {
    if (event_ == nullptr) return true;
    if (!event_->happened()) {
      check();
      return false;
    }
    event_.reset();
    return true;
  }

  size_t size_of_element() const { return size_of(batch_.dtype); }
  std::byte* shard_on_device() const {
    return batch_.output + static_cast<size_t>(mine_.begin) * size_of_element();
  }
  int64_t bytes_of_shard() const { return mine_.count * static_cast<int64_t>(size_of_element()); }
  // The exchange between hosts scales what it is given, if no host adds before. All hosts give it
  // numbers of one scale.
  bool scales_before() const { return !op_.layout_.one_rank_each() && is_floating(batch_.dtype); }

  // Now, so that the batches of a lane come in one order on all hosts. It touches the memory when
  // it is stepped.
  void start_between_hosts() {
    std::byte* const memory = pinned_.take(static_cast<size_t>(bytes_of_shard()));
    core::Batch shard = batch_;
    shard.device = DeviceKind::Host;
    shard.queue = nullptr;
    shard.input = shard.output = memory;
    shard.count = mine_.count;
    if (scales_before()) {
      shard.prescale = 1.0;
      shard.postscale = batch_.postscale / reduction_.part;
    }
    between_ = op_.between_->start(std::move(shard));
  }

  ShardCalls calls() const {
    return {shards_,
            reduction_.dtype,
            reduction_.op,
            op_.layout_.local_rank,
            op_.layout_.local_size,
            op_.queue_.stream()};
  }
  void reduce() {
    const double factor = scales_before() ? batch_.prescale * reduction_.part : 1.0;
    if (factor != 1.0) {
      op_.queue_.launch(scale_all(batch_.dtype, factor, input_, batch_.output, batch_.count));
      input_ = batch_.output;
    }
    if (alone()) return;
    op_.reduce_line_->call(op_.queue_, [&](NcclApi& nccl, NcclComm comm) {
      calls().reduce(nccl, comm, input_, batch_.output);
    });
  }
  void gather() {
    if (mine_.count > 0) copy(pinned_.memory(), shard_on_device());
    if (alone()) return;
    op_.gather_line_->call(op_.queue_, [&](NcclApi& nccl, NcclComm comm) {
      calls().gather(nccl, comm, batch_.output);
    });
  }
  void copy_to_host() {
    copy(alone() ? input_ : shard_on_device(), pinned_.memory());
    event_ = op_.queue_.record();
  }
  void copy(const std::byte* from, std::byte* to) {
    core::CopyItem item;
    item.from = from;
    item.to = to;
    item.bytes = static_cast<size_t>(bytes_of_shard());
    op_.queue_.copy({&item, 1});
  }

  NcclHierAllreduce& op_;
  const core::Batch batch_;
  const std::byte* input_;  // scaled, if it must be
  const NcclReduction reduction_;
  const HostShards shards_;
  const HostShards::Stretch mine_;  // empty without a lane
  ScratchLoan pinned_;              // of this rank's shard
  std::unique_ptr<core::InFlight> between_;
  uint64_t reduce_turn_ = 0;
  uint64_t gather_turn_ = 0;
  Stage stage_ = Stage::Reducing;
  std::shared_ptr<core::Event> event_;  // the next stage begins behind it
};

NcclHierAllreduce::NcclHierAllreduce(std::shared_ptr<JobGpu> gpu, const BetweenHosts& between_hosts,
                                     uint32_t set, const std::string& members)
    : layout_(make_hosts_layout(between_hosts.topology)),
      pinned_(pinned_memory(gpu)),
      queue_(static_cast<CudaQueue&>(pinned_.domain(DeviceKind::Cuda).queue())) {
  if (layout_.drives()) {
    between_ = std::make_unique<HierarchicalAllreduce>(of_lane(between_hosts, layout_));
  }
  if (layout_.local_size > 1) connect_host(gpu, between_hosts, set, members);
}

size_t NcclHierAllreduce::area_bytes(const core::Topology& topology) {
  return topology.local_size == 1 ? 0 : 2 * turns_bytes(topology.local_size);
}

void NcclHierAllreduce::connect_host(const std::shared_ptr<JobGpu>& gpu,
                                     const BetweenHosts& between_hosts, uint32_t set,
                                     const std::string& members) {
  core::LocalGroup& group = *between_hosts.group;
  std::byte* const area = between_hosts.area;
  reduce_turns_ = std::make_unique<SharedMemoryAllreduce>(group, area, between_hosts.constants);
  gather_turns_ = std::make_unique<SharedMemoryAllreduce>(
      group, area + turns_bytes(layout_.local_size), between_hosts.constants);
  NcclCommunicator::Parts parts;
  parts.gpu = gpu;
  parts.size = layout_.local_size;
  parts.rank = layout_.local_rank;
  parts.members = members;
  parts.id_exchange = std::make_unique<AllreduceNcclId>(*reduce_turns_, parts.rank == 0);
  host_ = std::make_shared<NcclCommunicator>(std::move(parts));
  // A batch starts on each rank when its tensors are ready there. A rank may want the result of an
  // earlier batch first, whose second half comes behind the exchange.
  const auto turn = [&](LaunchLine::Of of, SharedMemoryAllreduce& allreduce) {
    return std::make_unique<LaunchTurn>(gpu->launch_order(), LaunchLine{set, of}, allreduce,
                                        LaunchTurn::Propose::WhenAllHaveCome);
  };
  reduce_line_ =
      std::make_unique<NcclLine>(host_, turn(LaunchLine::Of::ReduceOnHost, *reduce_turns_));
  gather_line_ =
      std::make_unique<NcclLine>(host_, turn(LaunchLine::Of::GatherOnHost, *gather_turns_));
}

std::string NcclHierAllreduce::refusal(const core::BatchFacts& facts) const {
  if (facts.kind != CollectiveKind::Allreduce) return "it does allreduce only";
  if (facts.device != DeviceKind::Cuda) {
    return core::concat("it can't reach ", to_string(facts.device), " memory");
  }
  return why_nccl_cannot_reduce(facts.dtype, facts.reduce_op);
}

std::unique_ptr<core::InFlight> NcclHierAllreduce::start(core::Batch batch) {
  if (batch.count == 0) return std::make_unique<Nothing>();
  return std::make_unique<Flight>(*this, std::move(batch));
}

void NcclHierAllreduce::abort() noexcept {
  if (host_ != nullptr) host_->abort();
}

void NcclHierAllreduce::finish_abort(std::chrono::steady_clock::time_point limit) noexcept {
  if (host_ != nullptr) host_->finish_abort(limit);
}

}  // namespace horon::ops
