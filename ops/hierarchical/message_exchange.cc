#include "horon/ops/hierarchical/message_exchange.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/ops/hierarchical/block_flow.h"

namespace horon::ops {
namespace {

using core::Progress;

// Bytes copied in one step for other ranks, and as much again for this one. The step ends after the
// flow that exceeds this.
constexpr int64_t kMessageStepBytes = 1 << 20;
// Bytes that one rank has under way: more than a cable of 10 Gbit/s and 1 ms holds.
constexpr int64_t kExchangeBytesAtOnce = 2 << 20;

}  // namespace

class MessageExchange::Running final : public core::InFlight {
 public:
  Running(MessageExchange& parent, core::Batch batch)
      : parent_(parent),
        batch_(std::move(batch)),
        number_(parent.window_.take_number()),
        tag_(Messages::kFirstBlockTag + static_cast<int>(number_ % ExchangeWindow::kDistinct)),
        at_once_(static_cast<size_t>(std::clamp<int64_t>(
            kExchangeBytesAtOnce / kMessageBytes / std::max(parent.size_ - 1, 1), 2, 16))) {}

  Progress step() override {
    if (!parent_.window_.may_begin(number_)) return Progress::Ringing;
    if (!begun_) begin();
    parent_.messages_->progress();
    bool moved = advance_flows();
    moved = copy_own() || moved;
    if (!over()) return moved ? Progress::Advanced : more_ ? Progress::Driving : Progress::Polling;
    parent_.window_.note_ended(number_);
    return Progress::Done;
  }

 private:
  int64_t bytes_of(int64_t elements) const {
    return elements * static_cast<int64_t>(size_of(batch_.dtype));
  }
  // Among many ranks the next step goes on where this one ends.
  bool advance_flows() {
    int64_t touched = 0;
    more_ = false;
    for (size_t tried = 0; tried < flows_.size() && touched < kMessageStepBytes; ++tried) {
      touched += flows_[next_flow_].advance(*parent_.messages_, tag_, at_once_);
      more_ |= flows_[next_flow_].has_more();
      next_flow_ = (next_flow_ + 1) % flows_.size();
    }
    return touched > 0;
  }

  // Each rank begins with the next member, so that not all ranks send to the same one first.
  void begin() {
    begun_ = true;
    const auto size = static_cast<size_t>(parent_.size_);
    const core::BlockCounts& out = batch_.send_counts;
    const core::BlockCounts& in = batch_.receive_counts;
    HORON_CHECK(out.size() == size && in.size() == size, "one count for each rank, both ways");
    std::byte* place = batch_.output;
    std::vector<std::byte*> to(size);
    std::vector<std::byte*> from(size);
    auto* block = const_cast<std::byte*>(batch_.input);
    for (size_t member = 0; member < size; ++member) {
      from[member] = block;
      to[member] = place;
      block += bytes_of(out[member]);
      place += bytes_of(in[member]);
    }
    const auto me = static_cast<size_t>(parent_.rank_);
    HORON_CHECK(out[me] == in[me], "what a rank sends itself must be what it gets");
    own_from_ = from[me];
    own_to_ = to[me];
    own_bytes_ = bytes_of(in[me]);
    if (own_from_ == own_to_) copied_ = own_bytes_;
    for (int distance = 1; distance < parent_.size_; ++distance) {
      const auto next = (parent_.rank_ + distance) % parent_.size_;
      const auto member = static_cast<size_t>(next);
      // In a gather or a scatter, most ranks exchange with one.
      if (in[member] > 0) flows_.emplace_back(next, to[member], bytes_of(in[member]), false);
      if (out[member] > 0) flows_.emplace_back(next, from[member], bytes_of(out[member]), true);
    }
  }

  bool copy_own() {
    const int64_t bytes = std::min(kMessageStepBytes, own_bytes_ - copied_);
    if (bytes == 0) return false;
    core::copy_bytes(own_to_ + copied_, own_from_ + copied_, static_cast<size_t>(bytes));
    copied_ += bytes;
    return true;
  }

  bool over() const {
    const auto is_over = [](const BlockFlow& flow) { return flow.over(); };
    return copied_ == own_bytes_ && std::all_of(flows_.begin(), flows_.end(), is_over);
  }

  MessageExchange& parent_;
  const core::Batch batch_;
  const uint64_t number_;  // among the exchanges
  const int tag_;
  const size_t at_once_;  // messages of one flow
  bool begun_ = false;
  std::vector<BlockFlow> flows_;  // by distance: what is received, and what is sent
  size_t next_flow_ = 0;
  bool more_ = false;  // to post, of the flows of the last step: of all, if nothing moved
  const std::byte* own_from_ = nullptr;
  std::byte* own_to_ = nullptr;
  int64_t own_bytes_ = 0;
  int64_t copied_ = 0;  // bytes
};

MessageExchange::MessageExchange(std::shared_ptr<Messages> messages, int rank, int size)
    : messages_(std::move(messages)), rank_(rank), size_(size) {}

std::unique_ptr<core::InFlight> MessageExchange::start(core::Batch batch) {
  return std::make_unique<Running>(*this, std::move(batch));
}

}  // namespace horon::ops
