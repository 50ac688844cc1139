#include "horon/ops/host/ring_feeds.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/ops/host/stream_copy.h"

namespace horon::ops {

RingPool::Ring RingPool::take(size_t bytes) {
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [&](const Ring& ring) { return ring.bytes >= bytes; });
  if (fits == free_.end()) return {group_.allocate_scratch(bytes), bytes};
  Ring ring = std::move(*fits);
  free_.erase(fits);
  return ring;
}

void RingFeeds::add(int to, const std::byte* from, int64_t bytes) {
  const int rank = group_.local_rank();
  if (ring_.memory == nullptr) {
    ring_ = pool_.take(static_cast<size_t>(blocks_) * ring_bytes());
    const auto address = group_.locate(ring_.memory.get(), ring_.bytes);
    HORON_CHECK(address.has_value(), "a ring must be shareable");
    cell_.member(rank).input = *address;
  }
  std::byte* const ring = ring_.memory.get();
  if (feeds_.empty() || blocks_ > 1) {
    feeds_.push_back(
        {{}, from, ring + feeds_.size() * ring_bytes(), Pieces::in_ring(bytes, piece_bytes_)});
  }
  RingFeed& feed = feeds_.back();
  ExchangePair& pair = cell_.pair(rank, to);
  feed.readers.push_back({to, &pair});
  pair.send_begin = feed.ring - ring;
}

int64_t RingFeeds::feed() {
  int64_t bytes = 0;
  for (RingFeed& feed : feeds_) {
    if (!feed.has_room()) continue;
    const int64_t more = feed.pieces.bytes(feed.next);
    copy_in(feed);
    ++feed.next;
    for (const RingFeed::Reader& reader : feed.readers) {
      reader.pair->staged.store(feed.next, std::memory_order_seq_cst);
      progress_.wake_one(reader.rank);
    }
    if (feed.next == feed.pieces.count) note_time(feed);
    bytes += more;
  }
  return bytes;
}

void RingFeeds::copy_in(const RingFeed& feed) {
  const auto bytes = static_cast<size_t>(feed.pieces.bytes(feed.next));
  std::byte* const place = feed.ring + feed.pieces.ring_place(feed.next);
  const std::byte* const from = feed.from + feed.pieces.begin(feed.next);
  if (feed.readers.size() > 1 && feed.next == 0) {
    past_caches_ = pool_.stores_for_several_readers.past_caches(is_long(feed));
    begin_ = std::chrono::steady_clock::now();
  }
  if (feed.readers.size() > 1 && past_caches_) {
    stream_copy(place, from, bytes);
  } else {
    core::copy_bytes(place, from, bytes);
  }
}

void RingFeeds::note_time(const RingFeed& feed) {
  if (feed.readers.size() < 2 || !is_long(feed)) return;
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin_;
  pool_.stores_for_several_readers.note(past_caches_,
                                        time.count() / static_cast<double>(feed.pieces.total));
}

void RingFeeds::give_back() {
  if (ring_.memory != nullptr) pool_.give_back(std::exchange(ring_, {}));
}

}  // namespace horon::ops
