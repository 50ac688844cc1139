#include "horon/ops/hierarchical/chunk_spread.h"

#include "horon/core/base/copy_bytes.h"
#include "horon/ops/hierarchical/spread_tree.h"

namespace horon::ops {

int64_t ChunkSpread::begin(int64_t index, std::span<const std::byte* const> inputs,
                           std::span<std::byte* const> outputs) {
  const HostsLayout& layout = context_.layout;
  index_ = index;
  chunk_ = context_.chunks.at(index);
  bytes_ = chunk_.count * context_.element_bytes;
  if (bytes_ == 0) return 1;
  outputs_.assign(outputs.begin(), outputs.end());
  if (chunk_.host == layout.host) {
    data_ = inputs[static_cast<size_t>(chunk_.local_rank)];
    return pass_on();
  }
  std::byte* const place = outputs_[static_cast<size_t>(layout.local_rank)];
  data_ = place;
  const SpreadTree tree{layout.hosts, context_.fan_out, chunk_.host};
  const int parent = layout.peers[static_cast<size_t>(tree.parent_of(layout.host))];
  arrival_ = context_.messages.receive(parent, tag(), place, bytes_);
  passes_on_ = tree.children_of(layout.host) > 0;
  return 1;
}

// Two peers exchange the chunks of one lane, so tags count within it.
int ChunkSpread::tag() const {
  return context_.first_tag +
         static_cast<int>(index_ / context_.layout.lanes % kChunksOfLaneWithTags);
}

int64_t ChunkSpread::advance() {
  bool moved = false;
  std::erase_if(departures_, [&](Messages::Id id) {
    const bool is_over = context_.messages.take_if_over(id);
    moved = moved || is_over;
    return is_over;
  });
  if (!arrival_ || !context_.messages.take_if_over(*arrival_)) return moved ? 1 : 0;
  arrival_.reset();
  return pass_on();
}

// First to the other hosts, so that the wire works while the memory is written.
int64_t ChunkSpread::pass_on() {
  const HostsLayout& layout = context_.layout;
  const SpreadTree tree{layout.hosts, context_.fan_out, chunk_.host};
  const int children = tree.children_of(layout.host);
  for (int child = 0; child < children; ++child) {
    const int peer = layout.peers[static_cast<size_t>(tree.child(layout.host, child))];
    departures_.push_back(context_.messages.send_unanswered(peer, tag(), data_, bytes_));
  }
  for (std::byte* const output : outputs_) {
    if (output != data_) core::copy_bytes(output, data_, static_cast<size_t>(bytes_));
  }
  return 1 + children * (Messages::kPostCost + bytes_) + bytes_ * std::ssize(outputs_);
}

}  // namespace horon::ops
