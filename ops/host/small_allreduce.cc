#include "horon/ops/host/small_allreduce.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/core/base/round_up.h"
#include "horon/ops/host/few_looks.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::ops {

using core::Progress;

class SmallAllreduce::Running final : public core::InFlight {
 public:
  Running(SmallAllreduce& parent, core::Batch batch)
      : parent_(parent),
        batch_(std::move(batch)),
        number_(parent.next_++),
        bytes_(static_cast<size_t>(batch_.count) * size_of(batch_.dtype)) {
    posted_ = post();
  }

  Progress step() override {
    if (!posted_) {
      posted_ = post();
      if (posted_) return Progress::Advanced;
      parent_.reuse_.announce();
      posted_ = post();
      return posted_ ? Progress::Advanced : Progress::Ringing;
    }
    if (!looks_.see([this] { return all_here(); })) {
      parent_.arrival_.announce();
      if (!all_here()) return Progress::Ringing;
    }
    reduce();
    parent_.note_finished(number_);
    return Progress::Done;
  }

 private:
  bool post() {
    if (!parent_.cell_is_free(number_)) return false;
    Header& mine = parent_.header(number_, parent_.rank_);
    mine.read_through = parent_.own_through_;
    core::copy_bytes(parent_.payload(number_, parent_.rank_, bytes_), batch_.input, bytes_);
    mine.sequence.store(number_ + 1, std::memory_order_seq_cst);
    // Only the rank that sees all inputs wakes the others; the last one to arrive does see them.
    if (all_here()) parent_.arrival_.wake_all();
    return true;
  }

  bool all_here() {
    while (arrived_ < parent_.ranks_) {
      const auto& sequence = parent_.header(number_, arrived_).sequence;
      if (sequence.load(std::memory_order_seq_cst) != number_ + 1) return false;
      ++arrived_;
    }
    return true;
  }

  void reduce() {
    std::vector<const std::byte*>& inputs = parent_.inputs_;
    for (int rank = 0; rank < parent_.ranks_; ++rank) {
      const auto r = static_cast<size_t>(rank);
      inputs[r] = parent_.payload(number_, rank, bytes_);
      const uint64_t through = parent_.header(number_, rank).read_through;
      parent_.known_through_[r] = std::max(parent_.known_through_[r], through);
    }
    const Reduction reduction = {batch_.dtype, batch_.reduce_op, batch_.prescale, batch_.postscale,
                                 batch_.divisor};
    if (batch_.wants_output) reduce_many(reduction, inputs, {&batch_.output, 1}, batch_.count);
  }

  SmallAllreduce& parent_;
  core::Batch batch_;
  const uint64_t number_;
  const size_t bytes_;
  bool posted_ = false;
  FewLooks looks_;
  int arrived_ = 0;  // the inputs of the ranks below this one have arrived
};

namespace {

size_t payload_stride(int ranks) {
  return core::whole_cache_lines(static_cast<size_t>(SmallAllreduce::payload_bytes_max(ranks)));
}

}  // namespace

SmallAllreduce::SmallAllreduce(core::LocalGroup& group, std::byte* area)
    : rank_(group.local_rank()),
      ranks_(group.local_size()),
      arrival_(group, area),
      reuse_(group, area + Waiters::area_bytes(ranks_)),
      known_through_(static_cast<size_t>(ranks_)),
      inputs_(static_cast<size_t>(ranks_)) {
  std::byte* place = area + 2 * Waiters::area_bytes(ranks_);
  headers_ = reinterpret_cast<Header*>(place);
  place += kSets * static_cast<size_t>(ranks_) * sizeof(Header);
  read_through_ = reinterpret_cast<Line*>(place);
  payloads_ = place + static_cast<size_t>(ranks_) * sizeof(Line);
}

size_t SmallAllreduce::area_bytes(int ranks) {
  const size_t per_rank = kSets * (sizeof(Header) + payload_stride(ranks)) + sizeof(Line);
  return 2 * Waiters::area_bytes(ranks) + static_cast<size_t>(ranks) * per_rank;
}

int64_t SmallAllreduce::payload_bytes_max(int ranks) {
  return std::clamp<int64_t>((int64_t{32} << 10) / ranks, 512, 8 << 10);
}

SmallAllreduce::Header& SmallAllreduce::header(uint64_t number, int rank) const {
  const uint64_t set = number % kSets;
  return headers_[set * static_cast<uint64_t>(ranks_) + static_cast<uint64_t>(rank)];
}

std::byte* SmallAllreduce::payload(uint64_t number, int rank, size_t bytes) const {
  if (bytes <= kInlineBytes) return header(number, rank).inline_payload;
  const uint64_t cell =
      number % kSets * static_cast<uint64_t>(ranks_) + static_cast<uint64_t>(rank);
  return payloads_ + cell * payload_stride(ranks_);
}

bool SmallAllreduce::cell_is_free(uint64_t number) {
  if (number < kSets) return true;
  const uint64_t needed = number - kSets + 1;
  for (int rank = 0; rank < ranks_; ++rank) {
    uint64_t& known = known_through_[static_cast<size_t>(rank)];
    if (known >= needed) continue;
    known = read_through_[rank].value.load(std::memory_order_seq_cst);
    if (known < needed) return false;
  }
  return true;
}

void SmallAllreduce::note_finished(uint64_t number) {
  finished_[number % kSets] = true;
  while (finished_[own_through_ % kSets]) {
    finished_[own_through_ % kSets] = false;
    ++own_through_;
  }
  read_through_[rank_].value.store(own_through_, std::memory_order_seq_cst);
  reuse_.wake_all();
}

std::unique_ptr<core::InFlight> SmallAllreduce::start(core::Batch batch) {
  HORON_CHECK(batch.count * static_cast<int64_t>(size_of(batch.dtype)) <= payload_bytes_max(ranks_),
              "too long for a cell");
  return std::make_unique<Running>(*this, std::move(batch));
}

}  // namespace horon::ops
