#include "horon/ops/hierarchical/chunked_run.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::ops {
namespace {

// The bytes read or written in one step. The step ends after the piece of work that exceeds this,
// which may be as long again (kBytesOfRanksMax in exchange_plan.cc).
constexpr int64_t kChunkedStepBytes = 2 << 20;
// Mapping the memory of one rank takes as long as copying so many bytes.
constexpr int64_t kMapCost = 256 << 10;

}  // namespace

using core::Progress;

static_assert(HostCells::kCells >= ExchangeWindow::kDistinct);

ChunkedRun::Common::Common(BetweenHosts parts)
    : layout(make_hosts_layout(parts.topology)),
      messages(std::move(parts.messages)),
      scratch(std::move(parts.scratch)),
      group(parts.group),
      wire_type(parts.wire_type),
      constants(parts.constants) {
  if (layout.local_size == 1) return;
  HORON_CHECK(parts.group != nullptr && parts.area != nullptr,
              "the ranks of a host need shared memory");
  cells = std::make_unique<HostCells>(*parts.group, parts.area);
}

size_t ChunkedRun::area_bytes(const core::Topology& topology) {
  return topology.local_size == 1 ? 0 : HostCells::bytes(topology.local_size);
}

ChunkedRun::ChunkedRun(Common& common, uint64_t number, core::Batch batch,
                       std::unique_ptr<Chunks> chunks)
    : common_(common),
      number_(number),
      batch_(std::move(batch)),
      chunks_(std::move(chunks)),
      share_({&common.layout, chunks_.get(), &batch_, common.cells.get(), common.group,
              common.scratch.get(), number}),
      memory_(common.scratch.get()) {
  const HostsLayout& layout = common_.layout;
  if (layout.drives()) chunks_of_lane_ = layout.of_lane(chunks_->count(), layout.local_rank);
}

Progress ChunkedRun::step() {
  if (!posted_ && !begin()) return Progress::Ringing;
  bool moved = false;
  if (in_flight_ > 0) common_.messages->progress();
  int idle = 0;  // turns
  for (int64_t left = kChunkedStepBytes; left > 0 && idle < kTurns;) {
    const int64_t touched = take_turn();
    left -= touched;
    idle = touched > 0 ? 0 : idle + 1;
    moved = moved || touched > 0;
  }
  if (moved) return share_.over() ? leave() : Progress::Advanced;
  if (in_flight_ > 0) return is_waited_for() ? Progress::Driving : Progress::Polling;
  share_.announce();
  if (share_.over()) return leave();
  return can_begin_chunk() || share_.copy() > 0 ? Progress::Advanced : Progress::Ringing;
}

bool ChunkedRun::begin() {
  if (!common_.window.may_begin(number_) || !share_.post()) return false;
  posted_ = true;
  const int64_t at_once = std::min<int64_t>(chunks_->at_once(), chunks_of_lane_);
  if (at_once == 0) return true;
  const size_t each = chunks_->work_bytes();
  std::byte* memory = each == 0 ? nullptr : memory_.take(each * static_cast<size_t>(at_once));
  for (int64_t i = 0; i < at_once; ++i, memory += each) {
    work_.push_back(chunks_->make_work(memory));
  }
  return true;
}

// One piece of work may use up a step, so the next step goes on with the next kind of work.
int64_t ChunkedRun::take_turn() {
  const int turn = std::exchange(next_turn_, (next_turn_ + 1) % kTurns);
  if (turn == 0) return advance_one();
  return turn == 1 ? begin_chunk() : share_.copy();
}

// Advances the next chunk that can go on. Like begin_chunk() it returns a measure of the bytes that
// it has touched; 0: nothing to do.
int64_t ChunkedRun::advance_one() {
  for (size_t tried = 0; in_flight_ > 0 && tried < work_.size(); ++tried) {
    ChunkWork& work = *work_[next_work_];
    next_work_ = (next_work_ + 1) % work_.size();
    const int64_t touched = work.advance();
    if (touched == 0) continue;
    if (work.over()) {
      --in_flight_;
      note_over();
    }
    return touched;
  }
  return 0;
}

// Chunks of this lane end in any order. The others are told how many are over without a gap,
// counted from the first.
void ChunkedRun::note_over() {
  const auto is_under_way = [&](int64_t of_lane) {
    const int64_t chunk = of_lane * common_.layout.lanes + common_.layout.local_rank;
    return std::any_of(work_.begin(), work_.end(),
                       [&](const auto& work) { return !work->over() && work->index() == chunk; });
  };
  const int64_t before = over_of_lane_;
  while (over_of_lane_ < next_of_lane_ && !is_under_way(over_of_lane_)) ++over_of_lane_;
  if (over_of_lane_ != before) share_.set_over(over_of_lane_);
}

bool ChunkedRun::can_begin_chunk() {
  return next_of_lane_ < chunks_of_lane_ && in_flight_ < std::ssize(work_) &&
         next_of_lane_ - over_of_lane_ < kChunksOfLaneWithTags && share_.is_ready(next_chunk());
}

// With chunks under way, other hosts wait for what this rank sends when a chunk goes on, or when
// the next chunk begins in place of one that is over.
bool ChunkedRun::is_waited_for() const {
  return next_of_lane_ < chunks_of_lane_ ||
         std::any_of(work_.begin(), work_.end(),
                     [](const auto& work) { return !work->over() && work->is_waited_for(); });
}

int64_t ChunkedRun::begin_chunk() {
  if (!can_begin_chunk()) return 0;
  if (share_.map_next_rank()) return kMapCost;
  ChunkWork& free =
      **std::find_if(work_.begin(), work_.end(), [](const auto& one) { return one->over(); });
  const int64_t chunk = next_chunk();
  const int64_t touched = free.begin(chunk, share_.inputs(chunk), share_.outputs(chunk));
  ++next_of_lane_;
  if (free.over()) {
    note_over();
  } else {
    ++in_flight_;
  }
  return std::max(touched, int64_t{1});
}

Progress ChunkedRun::leave() {
  share_.leave();
  memory_.give_back();
  common_.window.note_ended(number_);
  return Progress::Done;
}

}  // namespace horon::ops
