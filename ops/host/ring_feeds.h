// The blocks that a rank gives in one collective by way of a ring of shared memory: those of an
// input that the others can't reach.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/host/local_group.h"
#include "horon/ops/host/block_transfer.h"
#include "horon/ops/host/exchange_area.h"
#include "horon/ops/host/store_choice.h"
#include "horon/ops/host/waiters.h"

namespace horon::ops {

// The rings of a process set, which one collective after the other uses.
class RingPool {
 public:
  struct Ring {
    std::shared_ptr<std::byte> memory;
    size_t bytes = 0;
  };
  explicit RingPool(core::LocalGroup& group) : group_(group) {}
  Ring take(size_t bytes);
  void give_back(Ring ring) { free_.push_back(std::move(ring)); }

  StoreChoice stores_for_several_readers;

 private:
  core::LocalGroup& group_;
  std::vector<Ring> free_;
};

class RingFeeds {
 public:
  // `piece_bytes`: the longest piece. `blocks`: how many different ones this rank gives.
  RingFeeds(core::LocalGroup& group, ExchangeCell cell, Waiters& progress, RingPool& pool,
            int64_t piece_bytes, int blocks)
      : group_(group),
        cell_(cell),
        progress_(progress),
        pool_(pool),
        piece_bytes_(piece_bytes),
        blocks_(blocks) {}

  // Adds a block for rank `to`, before the first feed(). If all ranks get the same block, the first
  // call lays it out and the others add readers.
  void add(int to, const std::byte* from, int64_t bytes);
  // Copies one piece of each block, where there is room. Returns the bytes copied.
  int64_t feed();
  // Call it when all is read: the next collective may have the ring.
  void give_back();

 private:
  void copy_in(const RingFeed& feed);
  // Whether the block is much longer than the ring, so that its readers set the pace.
  static bool is_long(const RingFeed& feed) { return feed.pieces.count >= 3 * kRingPieces; }
  void note_time(const RingFeed& feed);
  // The part of the ring for one block.
  size_t ring_bytes() const { return kRingPieces * static_cast<size_t>(piece_bytes_); }

  core::LocalGroup& group_;
  const ExchangeCell cell_;
  Waiters& progress_;
  RingPool& pool_;
  const int64_t piece_bytes_;
  const int blocks_;
  std::vector<RingFeed> feeds_;
  RingPool::Ring ring_;
  bool past_caches_ = false;  // how it is filled for several readers
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace horon::ops
