#include "horon/ops/hierarchical/hierarchical_allreduce.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/hierarchical/chunk_exchange.h"
#include "horon/ops/hierarchical/host_share.h"
#include "horon/ops/host/host_refusal.h"

namespace horon::ops {
namespace {

using core::Progress;

// Read or written in one step, and after that the rest of one chunk.
constexpr int64_t kHierarchicalStepBytes = 2 << 20;

// An allreduce without elements. All ranks know that, so none waits.
class EmptyAllreduce final : public core::InFlight {
 public:
  Progress step() override { return Progress::Done; }
};

}  // namespace

static_assert(HostCells::kCells * kTagsOfBatch <= Messages::kFirstBlockTag);

class HierarchicalAllreduce::Running final : public core::InFlight {
 public:
  Running(HierarchicalAllreduce& parent, core::Batch batch)
      : parent_(parent),
        batch_(std::move(batch)),
        number_(parent.next_++),
        context_{*parent.parts_.messages,
                 parent.layout_,
                 plan_exchange(parent.layout_, batch_.dtype, batch_.reduce_op, batch_.count),
                 HostSums(batch_, plan_exchange(parent.layout_, batch_.dtype, batch_.reduce_op,
                                                batch_.count)),
                 batch_.dtype,
                 static_cast<int>(number_ % HostCells::kCells) * kTagsOfBatch},
        share_({&parent.layout_, &context_.plan, &batch_, parent.cells_.get(), parent.parts_.group,
                parent.parts_.scratch.get(), number_}) {
    const HostsLayout& layout = parent_.layout_;
    if (layout.drives()) chunks_of_lane_ = plan().chunks_of(layout.local_rank, layout.lanes);
  }

  // The messages that are under way stay so.
  ~Running() override {
    if (memory_.memory != nullptr) parent_.parts_.scratch->leak(std::move(memory_));
  }

  Progress step() override {
    if (!posted_ && !begin()) return Progress::Ringing;
    bool moved = false;
    if (in_flight_ > 0) parent_.parts_.messages->progress();
    for (int64_t left = kHierarchicalStepBytes; left > 0;) {
      const int64_t before = left;
      left -= advance_one();
      if (left > 0) left -= begin_chunk();
      if (left > 0) left -= share_.copy();
      if (left == before) break;
      moved = true;
    }
    if (moved) return share_.over() ? leave() : Progress::Advanced;
    if (in_flight_ > 0) return Progress::Polling;
    share_.announce();
    if (share_.over()) return leave();
    return can_begin_chunk() || share_.copy() > 0 ? Progress::Advanced : Progress::Ringing;
  }

 private:
  const ExchangePlan& plan() const { return context_.plan; }
  int64_t next_chunk() const {
    return next_of_lane_ * parent_.layout_.lanes + parent_.layout_.local_rank;
  }

  bool begin() {
    if (number_ >= parent_.ended_through_ + kAtOnce || !share_.post()) return false;
    posted_ = true;
    const int64_t at_once = std::min<int64_t>(plan().chunks_at_once, chunks_of_lane_);
    if (at_once == 0) return true;
    const size_t each = ChunkExchange::memory_bytes(parent_.layout_, plan());
    memory_ = parent_.parts_.scratch->take(DeviceKind::Host, each * static_cast<size_t>(at_once));
    std::byte* place = memory_.memory.get();
    for (int64_t i = 0; i < at_once; ++i, place += each) exchanges_.emplace_back(context_, place);
    return true;
  }

  // The next chunk that can go on. As begin_chunk() it returns a measure of the bytes that it has
  // touched; 0: nothing to do.
  int64_t advance_one() {
    for (size_t tried = 0; in_flight_ > 0 && tried < exchanges_.size(); ++tried) {
      ChunkExchange& exchange = exchanges_[next_exchange_];
      next_exchange_ = (next_exchange_ + 1) % exchanges_.size();
      const int64_t touched = exchange.advance();
      if (touched == 0) continue;
      if (exchange.over()) {
        --in_flight_;
        note_over();
      }
      return touched;
    }
    return 0;
  }

  // Chunks of this lane are over in any order, and told in theirs.
  void note_over() {
    const auto is_under_way = [&](int64_t of_lane) {
      const int64_t chunk = of_lane * parent_.layout_.lanes + parent_.layout_.local_rank;
      return std::any_of(exchanges_.begin(), exchanges_.end(), [&](const ChunkExchange& exchange) {
        return !exchange.over() && exchange.index() == chunk;
      });
    };
    const int64_t before = over_of_lane_;
    while (over_of_lane_ < next_of_lane_ && !is_under_way(over_of_lane_)) ++over_of_lane_;
    if (over_of_lane_ != before) share_.set_over(over_of_lane_);
  }

  bool can_begin_chunk() {
    return next_of_lane_ < chunks_of_lane_ && in_flight_ < std::ssize(exchanges_) &&
           next_of_lane_ - over_of_lane_ < kChunksOfLaneWithTags && share_.is_ready(next_chunk());
  }

  int64_t begin_chunk() {
    if (!can_begin_chunk()) return 0;
    const auto free = std::find_if(exchanges_.begin(), exchanges_.end(),
                                   [](const ChunkExchange& one) { return one.over(); });
    const int64_t chunk = next_chunk();
    free->begin(chunk, share_.inputs(chunk), share_.outputs(chunk));
    ++next_of_lane_;
    ++in_flight_;
    return bytes_of_chunk();
  }

  int64_t bytes_of_chunk() const {
    return plan().chunk_elements * static_cast<int64_t>(size_of(plan().wire_type)) *
           parent_.layout_.local_size;
  }

  Progress leave() {
    share_.leave();
    if (memory_.memory != nullptr) {
      parent_.parts_.scratch->give_back(DeviceKind::Host, std::move(memory_), nullptr);
      memory_ = {};
    }
    parent_.note_ended(number_);
    return Progress::Done;
  }

  HierarchicalAllreduce& parent_;
  const core::Batch batch_;
  const uint64_t number_;  // among the allreduces of this op
  const ExchangeContext context_;
  HostShare share_;
  bool posted_ = false;
  int64_t chunks_of_lane_ = 0;  // that this rank drives; the next three count among them
  int64_t next_of_lane_ = 0;
  int64_t over_of_lane_ = 0;
  int64_t in_flight_ = 0;
  core::ScratchPool::Buffer memory_;
  std::vector<ChunkExchange> exchanges_;
  size_t next_exchange_ = 0;
};

HierarchicalAllreduce::HierarchicalAllreduce(Parts parts)
    : parts_(std::move(parts)), layout_(make_hosts_layout(parts_.topology)) {
  if (layout_.local_size == 1) return;
  HORON_CHECK(parts_.group != nullptr && parts_.area != nullptr,
              "the ranks of a host need shared memory");
  cells_ = std::make_unique<HostCells>(*parts_.group, parts_.area);
}

HierarchicalAllreduce::~HierarchicalAllreduce() = default;

size_t HierarchicalAllreduce::area_bytes(const core::Topology& topology) {
  return topology.local_size == 1 ? 0 : HostCells::bytes(topology.local_size);
}

std::string HierarchicalAllreduce::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Allreduce);
}

void HierarchicalAllreduce::note_ended(uint64_t number) {
  ended_[number % HostCells::kCells] = true;
  while (ended_[ended_through_ % HostCells::kCells]) {
    ended_[ended_through_++ % HostCells::kCells] = false;
  }
}

std::unique_ptr<core::InFlight> HierarchicalAllreduce::start(core::Batch batch) {
  if (batch.count == 0) return std::make_unique<EmptyAllreduce>();
  return std::make_unique<Running>(*this, std::move(batch));
}

}  // namespace horon::ops
