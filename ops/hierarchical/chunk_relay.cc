#include "horon/ops/hierarchical/chunk_relay.h"

#include <array>

namespace horon::ops {

size_t ChunkRelay::memory_bytes(const CollectContext& context) { return 2 * context.sum_bytes(); }

ChunkRelay::ChunkRelay(const CollectContext& context, std::byte* memory)
    : context_(context), received_(memory), sum_(memory + context.sum_bytes()) {}

int ChunkRelay::step() const {
  const HostsLayout& layout = context_.layout;
  return (layout.host - chunk_.host - 1 + layout.hosts) % layout.hosts;
}

int64_t ChunkRelay::begin(int64_t index, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs) {
  const HostsLayout& layout = context_.layout;
  index_ = index;
  chunk_ = context_.chunks.at(index);
  if (chunk_.count == 0) return 1;
  over_ = false;
  // Posted before this host's sum is made: the host before it may have sent its own.
  if (step() > 0) {
    const auto before = static_cast<size_t>((layout.host + layout.hosts - 1) % layout.hosts);
    incoming_ =
        context_.messages.receive(layout.peers[before], context_.tag(index_), received_, bytes());
  }
  const bool is_input = context_.sums.is_input(layout.local_size);
  if (!is_input) context_.sums.add_ranks(inputs, sum_, chunk_.count);
  own_ = is_input ? inputs.front() : sum_;
  output_ = is_last() ? outputs[static_cast<size_t>(chunk_.local_rank)] : nullptr;
  if (step() == 0) pass_on(own_);
  return Messages::kPostCost + bytes() * (layout.local_size + 1);
}

void ChunkRelay::pass_on(const std::byte* sum) {
  const HostsLayout& layout = context_.layout;
  const auto next = static_cast<size_t>((layout.host + 1) % layout.hosts);
  outgoing_ =
      context_.messages.send_unanswered(layout.peers[next], context_.tag(index_), sum, bytes());
}

int64_t ChunkRelay::advance() {
  if (over_) return 0;
  if (incoming_) {
    if (!context_.messages.take_if_over(*incoming_)) return 0;
    incoming_.reset();
    return add();
  }
  if (!context_.messages.take_if_over(*outgoing_)) return 0;
  outgoing_.reset();
  over_ = true;
  return 1;
}

int64_t ChunkRelay::add() {
  const std::array<const std::byte*, 2> both = {received_, own_};
  if (is_last()) {
    context_.sums.add_hosts(both, {&output_, 1}, chunk_.count);
    over_ = true;
    return 1 + 3 * bytes();
  }
  context_.sums.add_some(both, received_, chunk_.count);
  pass_on(received_);
  return Messages::kPostCost + 4 * bytes();
}

}  // namespace horon::ops
