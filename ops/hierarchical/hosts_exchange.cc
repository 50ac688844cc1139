#include "horon/ops/hierarchical/hosts_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/execution/chunk_plan.h"
#include "horon/ops/choice/algorithm.h"
#include "horon/ops/hierarchical/block_chunks.h"
#include "horon/ops/hierarchical/chunk_collect.h"
#include "horon/ops/hierarchical/chunk_relay.h"
#include "horon/ops/hierarchical/chunk_spread.h"
#include "horon/ops/hierarchical/host_sums.h"
#include "horon/ops/hierarchical/spread_tree.h"

namespace horon::ops {
namespace {

// The lower half of the tags of blocks is left to message_exchange.h.
constexpr int kFirstTag =
    Messages::kFirstBlockTag + (Messages::kTags - Messages::kFirstBlockTag) / 2;
static_assert(kFirstTag + ExchangeWindow::kDistinct * kChunksOfLaneWithTags <= Messages::kTags);

// The elements of each member's block.
std::vector<int64_t> blocks_of(const core::Batch& batch, int members) {
  if (batch.kind == CollectiveKind::Broadcast) {
    std::vector<int64_t> blocks(static_cast<size_t>(members));
    blocks[static_cast<size_t>(batch.root)] = batch.count;
    return blocks;
  }
  const bool gathers = batch.kind == CollectiveKind::Allgather;
  const core::BlockCounts& counts = gathers ? batch.receive_counts : batch.send_counts;
  HORON_CHECK(std::ssize(counts) == members, "one count for each member");
  return {counts.begin(), counts.end()};
}

// The wire type of a reducescatter.
WireType wire_type_of(const core::Batch& batch, const ChunkedRun::Common& common) {
  return choose_wire_type(batch.dtype, batch.reduce_op, core::total(batch.send_counts),
                          common.layout.one_rank_each(), common.wire_type);
}

// The elements of the host that has most, which its lanes share.
int64_t most_of_a_host(const core::Topology& topology, const std::vector<int64_t>& blocks) {
  std::vector<int64_t> of_host(static_cast<size_t>(topology.host_count()));
  for (size_t member = 0; member < blocks.size(); ++member) {
    of_host[static_cast<size_t>(topology.host_of[member])] += blocks[member];
  }
  return *std::max_element(of_host.begin(), of_host.end());
}

// For shorter blocks the number of steps decides.
constexpr int64_t kRelayBytesMin = 256 << 10;

// Whether a reducescatter goes in a ring: if some host's cable would otherwise carry clearly more,
// since all sums come to it directly. In the ring partial sums travel, so in the type of the sums.
bool is_relayed(const core::Batch& batch, const ChunkedRun::Common& common,
                const core::Topology& topology) {
  if (batch.kind != CollectiveKind::Reducescatter || common.layout.hosts < 3) return false;
  const WireType wire_type = wire_type_of(batch, common);
  if (wire_type.narrows(batch.dtype)) return false;
  const WireType of_sums = choose_wire_type(batch.dtype, batch.reduce_op, 0, false, wire_type);
  const int64_t in_ring = of_sums.bytes(core::total(batch.send_counts));
  const int64_t most = most_of_a_host(topology, blocks_of(batch, topology.size));
  const int64_t at_once = (common.layout.hosts - 1) * wire_type.bytes(most);
  return in_ring >= kRelayBytesMin && at_once > in_ring + in_ring / 4;
}

// Whether all parts into which such a batch is cut go the same way as the whole: the last parts
// have nothing of the shorter blocks.
bool is_relayed_as_its_parts(const core::Batch& batch, const ChunkedRun::Common& common,
                             const core::Topology& topology) {
  if (common.layout.hosts < 3) return true;
  const core::ChunkPlan plan = core::plan_chunks_of_blocks(batch.dtype, batch.send_counts);
  const bool whole = is_relayed(batch, common, topology);
  core::Batch part = batch;
  for (int64_t chunk = 0; plan.is_cut() && chunk < plan.chunks; ++chunk) {
    std::vector<int64_t> counts;
    for (const int64_t block : batch.send_counts) {
      counts.push_back(plan.stretch(chunk, block).count);
    }
    part.send_counts = std::move(counts);
    if (is_relayed(part, common, topology) != whole) return false;
  }
  return true;
}

// The wire type of the sums that the hosts of a batch add.
WireType wire_type_of(const core::Batch& batch, const ChunkedRun::Common& common, bool relayed) {
  if (batch.kind != CollectiveKind::Reducescatter) return batch.dtype;
  const WireType usual = wire_type_of(batch, common);
  return relayed ? choose_wire_type(batch.dtype, batch.reduce_op, 0, false, usual) : usual;
}

}  // namespace

class HostsExchange::BlocksOfBatch final : public Chunks {
 public:
  BlocksOfBatch(HostsExchange& parent, const core::Batch& batch, uint64_t number)
      : kind_(batch.kind),
        rank_(parent.topology_.rank),
        layout_(parent.common_.layout),
        element_bytes_(static_cast<int64_t>(size_of(batch.dtype))),
        blocks_(blocks_of(batch, parent.topology_.size)),
        relayed_(is_relayed(batch, parent.common_, parent.topology_)),
        wire_type_(wire_type_of(batch, parent.common_, relayed_)),
        constants_(parent.common_.constants),
        raw_(!reduces() ||
             (layout_.one_rank_each() && !wire_type_.narrows(batch.dtype) && !relayed_)),
        message_(message_elements(layout_, batch.dtype, wire_type_, 1, addends())),
        chunks_(parent.topology_, layout_.lanes, blocks_,
                chunk_elements(layout_, wire_type_, most_of_a_host(parent.topology_, blocks_),
                               message_)),
        sums_(batch, raw_, wire_type_),
        spread_{*parent.common_.messages, layout_,        chunks_,
                element_bytes_,           fan_out(batch), first_tag(number)},
        collect_{*parent.common_.messages, layout_, chunks_, sums_, wire_type_, first_tag(number)} {
    block_begins_.resize(blocks_.size());
    std::exclusive_scan(blocks_.begin(), blocks_.end(), block_begins_.begin(), int64_t{0});
  }

  int64_t count() const override { return chunks_.count(); }
  int64_t bytes_max() const override { return chunks_.chunk_elements() * element_bytes_; }
  int at_once() const override {
    const bool comes_from_all = reduces() && !relayed_;
    return chunks_at_once(layout_, wire_type_, message_, comes_from_all ? layout_.hosts - 1 : 1);
  }
  ChunkPlace place(int64_t index) const override {
    const BlockChunks::Chunk chunk = chunks_.at(index);
    const bool is_here = chunk.host == layout_.host;
    const int member = is_here ? chunk.local_rank : ChunkPlace::kNoRank;
    const int64_t in_all = block_begins_[static_cast<size_t>(chunk.member)] + chunk.begin;
    ChunkPlace place;
    place.bytes = chunk.count * element_bytes_;
    place.input_begin = (reduces() ? in_all : chunk.begin) * element_bytes_;
    place.output_begin =
        (kind_ == CollectiveKind::Allgather ? in_all : chunk.begin) * element_bytes_;
    (reduces() ? place.taker : place.giver) = member;
    return place;
  }
  int64_t input_bytes() const override { return reduces() ? all_bytes() : own_bytes(); }
  int64_t output_bytes() const override { return reduces() ? own_bytes() : all_bytes(); }

  size_t work_bytes() const override {
    if (relayed_) return ChunkRelay::memory_bytes(collect_);
    return reduces() ? ChunkCollect::memory_bytes(collect_) : 0;
  }
  std::unique_ptr<ChunkWork> make_work(std::byte* memory) const override {
    if (relayed_) return std::make_unique<ChunkRelay>(collect_, memory);
    if (reduces()) return std::make_unique<ChunkCollect>(collect_, memory);
    return std::make_unique<ChunkSpread>(spread_);
  }

 private:
  bool reduces() const { return kind_ == CollectiveKind::Reducescatter; }
  // A broadcast adds nothing, and its chunks go from host to host. In an allgather a host sends
  // each chunk to all others in one go, which costs as much as to add so many.
  int64_t addends() const {
    if (kind_ == CollectiveKind::Broadcast) return 1;
    return relayed_ ? 2 : layout_.hosts;
  }
  static int first_tag(uint64_t number) {
    return kFirstTag + static_cast<int>(number % ExchangeWindow::kDistinct) * kChunksOfLaneWithTags;
  }
  // For a broadcast and an allgather.
  int fan_out(const core::Batch& batch) const {
    Situation situation;
    situation.kind = kind_;
    situation.reach = Reach::Hosts;
    situation.hosts = layout_.hosts;
    situation.ranks_of_host = layout_.most_ranks;
    situation.bytes = batch.count * element_bytes_;
    situation.chunk_bytes = chunks_.chunk_elements() * element_bytes_;
    return choose_algorithm(situation, constants_).fan_out;
  }
  int64_t own_bytes() const { return blocks_[static_cast<size_t>(rank_)] * element_bytes_; }
  int64_t elements_of_all() const {
    return std::accumulate(blocks_.begin(), blocks_.end(), int64_t{0});
  }
  int64_t all_bytes() const { return elements_of_all() * element_bytes_; }

  const CollectiveKind kind_;
  const int rank_;
  const HostsLayout& layout_;
  const int64_t element_bytes_;
  const std::vector<int64_t> blocks_;  // elements, [member]
  const bool relayed_;
  const WireType wire_type_;
  const MachineConstants& constants_;
  const bool raw_;
  std::vector<int64_t> block_begins_;
  const int64_t message_;  // elements
  const BlockChunks chunks_;
  const HostSums sums_;
  const SpreadContext spread_;
  const CollectContext collect_;
};

HostsExchange::HostsExchange(BetweenHosts parts)
    : topology_(parts.topology), common_(std::move(parts)) {}

// The length of the whole decides whether sums are rounded, and in which order hosts are added.
bool HostsExchange::same_in_parts(const core::Batch& like) const {
  if (like.kind != CollectiveKind::Reducescatter) return true;
  return !wire_type_of(like, common_).narrows(like.dtype) &&
         is_relayed_as_its_parts(like, common_, topology_);
}

std::unique_ptr<core::InFlight> HostsExchange::start(core::Batch batch) {
  const uint64_t number = common_.window.take_number();
  auto chunks = std::make_unique<BlocksOfBatch>(*this, batch, number);
  return std::make_unique<ChunkedRun>(common_, number, std::move(batch), std::move(chunks));
}

}  // namespace horon::ops
