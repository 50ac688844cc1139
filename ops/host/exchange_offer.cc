#include "horon/ops/host/exchange_offer.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/host/process_memory.h"

namespace horon::ops {
namespace {

// The least length of the longest block: below it, the system calls take longer than a second copy.
constexpr int64_t kByKernelBytesMin = 32 << 10;

class Offer {
 public:
  Offer(core::LocalGroup& group, const ExchangeCell& cell, const core::Batch& batch,
        const BlockPlan& plan, bool by_kernel)
      : group_(group),
        cell_(cell),
        batch_(batch),
        plan_(plan),
        by_kernel_(by_kernel && group.copies_between_processes()),
        rank_(group.local_rank()),
        ranks_(group.local_size()),
        mine_(cell.member(rank_)) {}

  uint32_t write() {
    mine_.input_reached = offer_input();
    mine_.output_reached = offer_output();
    uint32_t pairs = 0;
    for_each_other(rank_, ranks_, [&](int other) {
      const Block& sent = plan_.send[static_cast<size_t>(other)];
      const Block& received = plan_.receive[static_cast<size_t>(other)];
      if (sent.bytes > 0) {
        cell_.pair(rank_, other).send_begin = sent.begin;
        if (mine_.input_reached != Reached::InCell) ++pairs;
      }
      if (received.bytes == 0) return;
      ExchangePair& pair = cell_.pair(other, rank_);
      pair.claimed.store(0, std::memory_order_relaxed);
      pair.staged.store(0, std::memory_order_relaxed);
      pair.done.store(0, std::memory_order_relaxed);
      pair.receive_begin =
          lies_apart() ? static_cast<int64_t>(reinterpret_cast<uint64_t>(block_apart(other)))
                       : received.begin;
      ++pairs;
    });
    mine_.pairs = pairs;
    mine_.finished_pairs.store(0, std::memory_order_relaxed);
    return pairs;
  }

 private:
  Reached offer_input() {
    if (longest_of_others(plan_.send) == 0) return Reached::InCell;
    if (plan_.input_bytes <= ExchangeCell::payload_bytes_max(ranks_)) {
      core::copy_bytes(cell_.payload(rank_), batch_.input, static_cast<size_t>(plan_.input_bytes));
      return Reached::InCell;
    }
    return offer(batch_.input, plan_.input_bytes, plan_.send, mine_.input);
  }

  Reached offer_output() {
    return lies_apart() ? offer_blocks_apart()
                        : offer(batch_.output, plan_.output_bytes, plan_.receive, mine_.output);
  }

  Reached offer(const std::byte* data, int64_t bytes, const std::vector<Block>& blocks,
                core::SharedAddress& place) const {
    if (bytes == 0) return Reached::ByNobody;
    const auto size = static_cast<size_t>(bytes);
    if (const auto shared = group_.locate(data, size)) {
      place = *shared;
      return Reached::Mapped;
    }
    if (!may_be_copied(blocks) || !core::is_reachable(data, size)) return Reached::ByNobody;
    place.offset = reinterpret_cast<uint64_t>(data);
    return Reached::ByKernel;
  }

  // Blocks that lie apart have no common segment: each is given by its address in this process.
  Reached offer_blocks_apart() {
    if (!may_be_copied(plan_.receive)) return Reached::ByNobody;
    std::vector<std::span<const std::byte>> blocks;
    for_each_other(rank_, ranks_, [&](int other) {
      const auto bytes = static_cast<size_t>(plan_.receive[static_cast<size_t>(other)].bytes);
      blocks.emplace_back(block_apart(other), bytes);
    });
    if (!core::are_reachable(blocks)) return Reached::ByNobody;
    mine_.output.offset = 0;
    return Reached::ByKernel;
  }

  // Not for sums, which read what they can map, nor for a block for several ranks, which its owner
  // copies once.
  bool may_be_copied(const std::vector<Block>& blocks) const {
    return by_kernel_ && !plan_.reduces && !(plan_.one_for_all && ranks_ > 2) &&
           longest_of_others(blocks) >= kByKernelBytesMin;
  }

  int64_t longest_of_others(const std::vector<Block>& blocks) const {
    int64_t bytes = 0;
    for_each_other(rank_, ranks_, [&](int other) {
      bytes = std::max(bytes, blocks[static_cast<size_t>(other)].bytes);
    });
    return bytes;
  }

  bool lies_apart() const { return !batch_.output_blocks.empty(); }
  std::byte* block_apart(int from) const { return batch_.output_blocks[static_cast<size_t>(from)]; }

  core::LocalGroup& group_;
  const ExchangeCell& cell_;
  const core::Batch& batch_;
  const BlockPlan& plan_;
  const bool by_kernel_;
  const int rank_;
  const int ranks_;
  ExchangeMember& mine_;
};

}  // namespace

uint32_t offer_memory(core::LocalGroup& group, const ExchangeCell& cell, const core::Batch& batch,
                      const BlockPlan& plan, bool by_kernel) {
  return Offer(group, cell, batch, plan, by_kernel).write();
}

}  // namespace horon::ops
