#include "horon/ops/hierarchical/message_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/execution/block_layout.h"
#include "horon/ops/hierarchical/block_flow.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::ops {
namespace {

using core::Progress;

constexpr int64_t kMessageStepBytes = 1 << 20;  // copied or added in one step
// What one rank has under way: more than a cable of 10 Gbit/s and 1 ms holds.
constexpr int64_t kExchangeBytesAtOnce = 2 << 20;

}  // namespace

class MessageExchange::Running final : public core::InFlight {
 public:
  Running(MessageExchange& parent, core::Batch batch)
      : parent_(parent),
        batch_(std::move(batch)),
        number_(parent.next_++),
        tag_(Messages::kFirstBlockTag + static_cast<int>(number_ % (2 * kAtOnce))),
        at_once_(static_cast<size_t>(std::clamp<int64_t>(
            kExchangeBytesAtOnce / kMessageBytes / std::max(parent.size_ - 1, 1), 2, 16))) {}

  // The messages that are under way stay so.
  ~Running() override {
    if (scratch_.memory != nullptr) parent_.scratch_->leak(std::move(scratch_));
  }

  Progress step() override {
    if (number_ >= parent_.ended_through_ + kAtOnce) return Progress::Ringing;
    if (!begun_) begin();
    parent_.messages_->progress();
    bool moved = false;
    for (BlockFlow& flow : receives_) moved = advance(flow) || moved;
    for (BlockFlow& flow : sends_) moved = advance(flow) || moved;
    moved = copy_own() || moved;
    moved = add() || moved;
    if (!over()) return moved ? Progress::Advanced : Progress::Polling;
    if (scratch_.memory != nullptr) {
      parent_.scratch_->give_back(DeviceKind::Host, std::move(scratch_), nullptr);
      scratch_ = {};
    }
    parent_.note_ended(number_);
    return Progress::Done;
  }

 private:
  bool reduces() const { return batch_.kind == CollectiveKind::Reducescatter; }
  int64_t bytes_of(int64_t elements) const {
    return elements * static_cast<int64_t>(size_of(batch_.dtype));
  }
  bool advance(BlockFlow& flow) { return flow.advance(*parent_.messages_, tag_, at_once_); }

  // Each rank begins with the next member, so that not all ranks send to the same one first.
  void begin() {
    begun_ = true;
    const auto size = static_cast<size_t>(parent_.size_);
    std::vector<int64_t> out = batch_.send_counts;
    std::vector<int64_t> in = batch_.receive_counts;
    const bool gathers = batch_.kind == CollectiveKind::Allgather;
    if (gathers) out.assign(size, batch_.count);
    if (reduces()) in.assign(size, batch_.count);
    HORON_CHECK(out.size() == size && in.size() == size, "one count for each rank, both ways");
    std::byte* place = batch_.output;
    if (reduces()) {
      const int64_t bytes = bytes_of(batch_.count) * (parent_.size_ - 1);
      if (bytes > 0) {
        scratch_ = parent_.scratch_->take(DeviceKind::Host, static_cast<size_t>(bytes));
      }
      place = scratch_.memory.get();
    }
    std::vector<std::byte*> to(size);
    std::vector<std::byte*> from(size);
    auto* block = const_cast<std::byte*>(batch_.input);
    for (size_t member = 0; member < size; ++member) {
      from[member] = block;
      to[member] = place;
      if (!gathers) block += bytes_of(out[member]);
      const bool own = member == static_cast<size_t>(parent_.rank_);
      if (!own || !reduces()) place += bytes_of(in[member]);
    }
    const auto me = static_cast<size_t>(parent_.rank_);
    HORON_CHECK(out[me] == in[me], "what a rank sends itself must be what it gets");
    own_from_ = from[me];
    own_to_ = reduces() ? batch_.output : to[me];
    own_bytes_ = bytes_of(in[me]);
    if (reduces() || own_from_ == own_to_) copied_ = own_bytes_;
    for (int distance = 1; distance < parent_.size_; ++distance) {
      const auto next = (parent_.rank_ + distance) % parent_.size_;
      const auto member = static_cast<size_t>(next);
      receives_.emplace_back(next, to[member], bytes_of(in[member]), false);
      sends_.emplace_back(next, from[member], bytes_of(out[member]), true);
    }
  }

  bool copy_own() {
    const int64_t bytes = std::min(kMessageStepBytes, own_bytes_ - copied_);
    if (bytes == 0) return false;
    std::memcpy(own_to_ + copied_, own_from_ + copied_, static_cast<size_t>(bytes));
    copied_ += bytes;
    return true;
  }

  // Reducescatter: what has come of the blocks of all members.
  bool add() {
    if (!reduces() || added_ == own_bytes_) return false;
    int64_t end = std::min(own_bytes_, added_ + kMessageStepBytes);
    for (const BlockFlow& flow : receives_) end = std::min(end, flow.bytes_over());
    if (end == added_) return false;
    std::vector<const std::byte*> blocks(static_cast<size_t>(parent_.size_));
    blocks[static_cast<size_t>(parent_.rank_)] = own_from_ + added_;
    for (size_t i = 0; i < receives_.size(); ++i) {
      const auto member = (static_cast<size_t>(parent_.rank_) + 1 + i) % blocks.size();
      blocks[member] = receives_[i].data() + added_;
    }
    std::byte* const output = own_to_ + added_;
    reduce_many({batch_.dtype, batch_.reduce_op, batch_.prescale, batch_.postscale, batch_.divisor},
                blocks, {&output, 1}, (end - added_) / static_cast<int64_t>(size_of(batch_.dtype)));
    added_ = end;
    return true;
  }

  bool over() const {
    const auto is_over = [](const BlockFlow& flow) { return flow.over(); };
    return copied_ == own_bytes_ && (!reduces() || added_ == own_bytes_) &&
           std::all_of(receives_.begin(), receives_.end(), is_over) &&
           std::all_of(sends_.begin(), sends_.end(), is_over);
  }

  MessageExchange& parent_;
  const core::Batch batch_;
  const uint64_t number_;  // among the exchanges
  const int tag_;
  const size_t at_once_;  // messages of one flow
  bool begun_ = false;
  std::vector<BlockFlow> receives_, sends_;  // by distance
  const std::byte* own_from_ = nullptr;
  std::byte* own_to_ = nullptr;
  int64_t own_bytes_ = 0;
  int64_t copied_ = 0;                 // bytes
  int64_t added_ = 0;                  // bytes
  core::ScratchPool::Buffer scratch_;  // Reducescatter: the blocks of the others
};

MessageExchange::MessageExchange(std::shared_ptr<Messages> messages,
                                 std::shared_ptr<core::ScratchPool> scratch, int rank, int size)
    : messages_(std::move(messages)), scratch_(std::move(scratch)), rank_(rank), size_(size) {}

void MessageExchange::note_ended(uint64_t number) {
  constexpr uint64_t kept = 2 * kAtOnce;
  ended_[number % kept] = true;
  while (ended_[ended_through_ % kept]) ended_[ended_through_++ % kept] = false;
}

std::unique_ptr<core::InFlight> MessageExchange::start(core::Batch batch) {
  return std::make_unique<Running>(*this, std::move(batch));
}

}  // namespace horon::ops
