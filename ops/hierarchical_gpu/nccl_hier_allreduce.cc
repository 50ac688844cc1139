#include "horon/ops/hierarchical_gpu/nccl_hier_allreduce.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "horon/core/base/all_ranks.h"
#include "horon/core/base/round_up.h"
#include "horon/core/execution/finished_flight.h"
#include "horon/ops/hierarchical/lane_messages.h"
#include "horon/ops/nccl/nccl_reduction.h"

namespace horon::ops {
namespace {

using core::Progress;

// The ranks of one lane on all hosts, as if they were hosts of one rank each.
BetweenHosts of_lane(const BetweenHosts& all, const HostsLayout& layout) {
  BetweenHosts lane;
  lane.topology = core::make_topology(layout.host, core::all_ranks(layout.hosts));
  lane.messages = std::make_shared<LaneMessages>(all.messages, layout.peers);
  lane.scratch = all.scratch;
  lane.wire_type = all.wire_type;
  lane.constants = all.constants;
  return lane;
}

size_t turns_bytes(int local_size) {
  return core::whole_cache_lines(SharedMemoryAllreduce::area_bytes(local_size));
}

}  // namespace

// One batch on this rank.
class NcclHierAllreduce::Flight final : public core::InFlight {
 public:
  Flight(NcclHierAllreduce& op, core::Batch batch)
      : op_(op),
        batch_(std::move(batch)),
        elements_(op.piece_elements(batch_, batch_.piece_bytes)),
        next_(op.numbered_),
        first_(next_),
        end_(first_ + static_cast<uint64_t>((batch_.count + elements_ - 1) / elements_)) {
    op_.numbered_ = end_;
  }

  Progress step() override {
    bool moved = false;
    while (begin_piece()) moved = true;
    Progress next = Progress::Polling;
    for (auto piece = under_way_.begin(); piece != under_way_.end();) {
      const Progress progress = (*piece)->step();
      if (progress == Progress::Done) {
        piece = under_way_.erase(piece);
        moved = true;
        continue;
      }
      next = std::min(next, progress);
      // One piece uses up the time of a step; the others have their turn in the next steps.
      if (progress == Progress::Advanced) {
        std::rotate(under_way_.begin(), piece + 1, under_way_.end());
        break;
      }
      ++piece;
    }
    if (next_ == end_ && under_way_.empty()) return Progress::Done;
    return moved ? Progress::Advanced : next;
  }

 private:
  // False: there is no piece to begin, or it must wait for earlier ones.
  bool begin_piece() {
    if (next_ == end_ || next_ != op_.begun_) return false;
    const int64_t begin = static_cast<int64_t>(next_ - first_) * elements_;
    const int64_t count = std::min(elements_, batch_.count - begin);
    const HostShards shards(count, batch_.dtype, op_.layout_.lanes);
    const bool has_shard = shards.of(op_.layout_.local_rank).count > 0;
    if (has_shard && !op_.slots_.is_made()) return false;
    if (!op_.slots_.take(next_)) return false;
    core::Batch piece = batch_;
    const size_t offset = static_cast<size_t>(begin) * size_of(batch_.dtype);
    piece.input += offset;
    piece.output += offset;
    piece.count = count;
    piece.piece_bytes = 0;  // it is a piece itself
    under_way_.push_back(
        std::make_unique<ShardPiece>(*op_.tools_, std::move(piece), shards, next_));
    ++next_;
    ++op_.begun_;
    return true;
  }

  NcclHierAllreduce& op_;
  const core::Batch batch_;
  const int64_t elements_;  // of all pieces but the last
  uint64_t next_;           // piece to begin
  const uint64_t first_;
  const uint64_t end_;
  std::vector<std::unique_ptr<ShardPiece>> under_way_;
};

NcclHierAllreduce::NcclHierAllreduce(const std::shared_ptr<JobGpu>& gpu,
                                     const BetweenHosts& between_hosts, uint32_t set,
                                     const std::string& members)
    : layout_(make_hosts_layout(between_hosts.topology)),
      wire_type_(between_hosts.wire_type),
      sums_([gpu] { return gpu->cuda(); }),
      to_host_([gpu] { return gpu->cuda(); }),
      to_device_([gpu] { return gpu->cuda(); }),
      slots_(gpu, static_cast<size_t>(HostShards::bytes_max(layout_.lanes))) {
  if (layout_.drives()) {
    between_ = std::make_unique<HierarchicalAllreduce>(of_lane(between_hosts, layout_));
  }
  if (layout_.local_size > 1) connect_host(gpu, between_hosts, set, members);
  tools_ = std::make_unique<ShardTools>(ShardTools{layout_, sums_, to_host_, to_device_, slots_,
                                                   between_.get(), reduce_line_.get(),
                                                   gather_line_.get()});
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
  // A batch starts on each rank when its tensors are ready there. For that a rank may first need
  // the result of an earlier batch, whose second half comes after its exchange.
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
  if (facts.captured) return "the host sends between hosts, which a CUDA graph can't hold";
  return nccl_refusal(facts, CollectiveKind::Allreduce);
}

// All lengths must give the same bits, so where they would not, there is only one length. Sums that
// are rounded for the wire are rounded once or twice, depending on the length of a piece; and the
// order in which NCCL adds three inputs or more may depend on it.
int64_t NcclHierAllreduce::piece_elements(const core::Batch& batch, int64_t piece_bytes) const {
  const bool may_be_rounded = batch.int8_between_hosts || wire_type_.narrows(batch.dtype);
  const bool one_length = may_be_rounded || layout_.most_ranks > 2;
  return HostShards::batch_elements(batch.dtype, layout_.lanes, one_length ? 0 : piece_bytes);
}

core::PieceSizes NcclHierAllreduce::piece_sizes(const core::Batch& like) const {
  const auto bytes_of_piece = [&](int64_t piece_bytes) {
    return piece_elements(like, piece_bytes) * static_cast<int64_t>(size_of(like.dtype));
  };
  return {bytes_of_piece(1), bytes_of_piece(std::numeric_limits<int64_t>::max()),
          bytes_of_piece(0)};
}

std::unique_ptr<core::InFlight> NcclHierAllreduce::start(core::Batch batch) {
  if (batch.count == 0) return std::make_unique<core::FinishedFlight>();
  return std::make_unique<Flight>(*this, std::move(batch));
}

void NcclHierAllreduce::abort() noexcept {
  if (host_ != nullptr) host_->abort();
}

void NcclHierAllreduce::finish_abort(std::chrono::steady_clock::time_point limit) noexcept {
  if (host_ != nullptr) host_->finish_abort(limit);
}

}  // namespace horon::ops
