// How a collective between hosts goes in chunks. The ranks of all hosts cut the batch alike. One
// rank of each host drives a chunk; the lanes (exchange_plan.h) take turns. The driver reads the
// memory of the ranks of its host, exchanges messages with its peers, and writes the memory again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace horon::ops {

// Where a chunk lies in the memory of the ranks of this host.
struct ChunkPlace {
  static constexpr int kEveryRank = -1;
  static constexpr int kNoRank = -2;

  int64_t input_begin = 0;   // bytes
  int64_t output_begin = 0;  // bytes
  int64_t bytes = 0;
  int giver = kEveryRank;  // local rank whose input is read
  int taker = kEveryRank;  // local rank whose output is written

  bool gives(int local_rank) const { return giver == kEveryRank || giver == local_rank; }
  bool takes(int local_rank) const { return taker == kEveryRank || taker == local_rank; }
};

// Does one chunk after the other. A rank that drives chunks has several of these under way.
class ChunkWork {
 public:
  virtual ~ChunkWork() = default;
  // `inputs` and `outputs`: of the chunk, by local rank, as addresses in this process; null for a
  // rank that does not give or take. The other ranks touch neither until the chunk is over. Returns
  // a measure of the bytes that it has touched.
  virtual int64_t begin(int64_t index, std::span<const std::byte* const> inputs,
                        std::span<std::byte* const> outputs) = 0;
  // Goes on as far as it can. Returns a measure of the bytes that it has touched, at least 1; 0 if
  // it can't go on.
  virtual int64_t advance() = 0;
  // Another host waits for something that this rank sends once a message has come.
  virtual bool is_waited_for() const = 0;
  // True before the first chunk, too.
  virtual bool over() const = 0;
  virtual int64_t index() const = 0;
};

// Each host advances its chunks in an order of its own. So no message may have the tag of another
// one that is under way between the same peers: chunks that are this far apart in a lane are not
// under way together.
inline constexpr int kChunksOfLaneWithTags = 512;

// The chunks of one batch. All ranks number them alike.
class Chunks {
 public:
  virtual ~Chunks() = default;
  virtual int64_t count() const = 0;
  virtual int64_t bytes_max() const = 0;  // of one chunk, in the memory of the ranks
  virtual int at_once() const = 0;        // under way in one lane
  virtual ChunkPlace place(int64_t index) const = 0;
  // How much of this rank's memory its host reads and writes.
  virtual int64_t input_bytes() const = 0;
  virtual int64_t output_bytes() const = 0;
  // `memory`: work_bytes(), 64-byte aligned. The chunks outlive the work.
  virtual size_t work_bytes() const = 0;
  virtual std::unique_ptr<ChunkWork> make_work(std::byte* memory) const = 0;
};

}  // namespace horon::ops
