#include "horon/ops/hierarchical/block_chunks.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace horon::ops {

BlockChunks::BlockChunks(const core::Topology& topology, int lanes, std::vector<int64_t> blocks,
                         int64_t chunk_elements)
    : lanes_(lanes), blocks_(std::move(blocks)), chunk_elements_(chunk_elements) {
  hosts_.resize(static_cast<size_t>(topology.host_count()));
  for (int member = 0; member < topology.size; ++member) {
    Host& host = hosts_[static_cast<size_t>(topology.host_of[static_cast<size_t>(member)])];
    host.members.push_back(member);
    host.first_chunk.push_back(host.chunks);
    const int64_t elements = blocks_[static_cast<size_t>(member)];
    host.chunks += (elements + chunk_elements_ - 1) / chunk_elements_;
  }
  for (Host& host : hosts_) host.rows = (host.chunks + lanes_ - 1) / lanes_;
  int64_t rows = 0;
  for (int64_t row = 0;;) {
    Turns turns{rows, row, {}};
    int64_t next_row = std::numeric_limits<int64_t>::max();
    for (size_t host = 0; host < hosts_.size(); ++host) {
      if (hosts_[host].rows <= row) continue;
      turns.hosts.push_back(static_cast<int>(host));
      next_row = std::min(next_row, hosts_[host].rows);
    }
    if (turns.hosts.empty()) break;
    rows += (next_row - row) * std::ssize(turns.hosts);
    row = next_row;
    turns_.push_back(std::move(turns));
  }
  count_ = rows * lanes_;
  if (turns_.empty()) return;
  // An empty chunk, which only fills a lane, costs every host a turn. The last row needs none,
  // since no row follows it.
  const Host& last = hosts_[static_cast<size_t>(turns_.back().hosts.back())];
  count_ -= last.rows * lanes_ - last.chunks;
}

BlockChunks::Chunk BlockChunks::at(int64_t index) const {
  const int64_t of_all = index / lanes_;
  const auto behind = std::upper_bound(turns_.begin(), turns_.end(), of_all,
                                       [](int64_t row, const Turns& t) { return row < t.first; });
  const Turns& turns = *std::prev(behind);
  const int64_t turn = of_all - turns.first;
  Chunk chunk;
  chunk.host = turns.hosts[static_cast<size_t>(turn % std::ssize(turns.hosts))];
  const Host& host = hosts_[static_cast<size_t>(chunk.host)];
  const int64_t row = turns.first_row + turn / std::ssize(turns.hosts);
  const int64_t of_host = row * lanes_ + index % lanes_;
  if (of_host >= host.chunks) return chunk;
  const auto next = std::upper_bound(host.first_chunk.begin(), host.first_chunk.end(), of_host);
  const auto local_rank = static_cast<size_t>(std::prev(next) - host.first_chunk.begin());
  chunk.local_rank = static_cast<int>(local_rank);
  chunk.member = host.members[local_rank];
  chunk.begin = (of_host - host.first_chunk[local_rank]) * chunk_elements_;
  chunk.count = std::min(chunk_elements_, blocks_[static_cast<size_t>(chunk.member)] - chunk.begin);
  return chunk;
}

}  // namespace horon::ops
