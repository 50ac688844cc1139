#include "horon/ops/hierarchical/chunk_collect.h"

namespace horon::ops {

size_t ChunkCollect::memory_bytes(const CollectContext& context) {
  return static_cast<size_t>(context.layout.hosts) * context.sum_bytes();
}

ChunkCollect::ChunkCollect(const CollectContext& context, std::byte* memory)
    : context_(context), memory_(memory) {
  for (int host = 0; host < context.layout.hosts; ++host) {
    sums_.push_back(memory + static_cast<size_t>(host) * context.sum_bytes());
  }
}

int64_t ChunkCollect::begin(int64_t index, std::span<const std::byte* const> inputs,
                            std::span<std::byte* const> outputs) {
  const HostsLayout& layout = context_.layout;
  index_ = index;
  chunk_ = context_.chunks.at(index);
  if (chunk_.count == 0) return 1;
  over_ = false;
  const int64_t bytes = context_.wire_type.bytes(chunk_.count);
  const auto own = static_cast<size_t>(layout.host);
  const auto place = [&](size_t host) { return memory_ + host * context_.sum_bytes(); };
  // Posted before this host's sum is made: the others may have sent theirs.
  for (int distance = 1; is_mine() && distance < layout.hosts; ++distance) {
    const auto host = static_cast<size_t>((layout.host + distance) % layout.hosts);
    under_way_.push_back(
        context_.messages.receive(layout.peers[host], context_.tag(index_), place(host), bytes));
  }
  const bool is_input = context_.sums.is_input(layout.local_size);
  if (!is_input) context_.sums.add_ranks(inputs, place(own), chunk_.count);
  sums_[own] = is_input ? inputs.front() : place(own);
  if (is_mine()) {
    output_ = outputs[static_cast<size_t>(chunk_.local_rank)];
  } else {
    const int peer = layout.peers[static_cast<size_t>(chunk_.host)];
    under_way_.push_back(
        context_.messages.send_unanswered(peer, context_.tag(index_), sums_[own], bytes));
  }
  return std::ssize(under_way_) * Messages::kPostCost + bytes * (layout.local_size + 1);
}

int64_t ChunkCollect::advance() {
  if (over_) return 0;
  bool moved = false;
  std::erase_if(under_way_, [&](Messages::Id id) {
    const bool is_over = context_.messages.take_if_over(id);
    moved = moved || is_over;
    return is_over;
  });
  if (!under_way_.empty()) return moved ? 1 : 0;
  over_ = true;
  if (!is_mine()) return 1;
  context_.sums.add_hosts(sums_, {&output_, 1}, chunk_.count);
  return 1 + context_.wire_type.bytes(chunk_.count) * context_.layout.hosts;
}

}  // namespace horon::ops
