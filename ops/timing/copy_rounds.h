// Times copies of private memory between two ranks of a host, both ways at the same time, for each
// of the two ways in block_exchange.h: the kernel copies it, or it goes into a ring of shared
// memory and out of it. For HostTiming, whose two ranks take turns.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace horon::ops {

// Zeroed memory that both ranks share. Index 0 is the leading rank's.
struct CopyRings {
  static constexpr size_t kBytes = 256 << 10;  // as long as a ring of two ranks (block_transfer.h)
  struct alignas(64) Side {
    std::array<std::byte, kBytes> ring;
    uint64_t block;  // this round's block, as an address in the process of its rank
  };
  std::array<Side, 2> sides;
  std::atomic<bool> refused;  // the kernel has not copied
};

// One rank's side of the rounds. Both ranks do each step of a round at about the same time, and
// begin the next step when both have done it.
class CopyRounds {
 public:
  enum Step : uint8_t { Compute, Fill, Drain, CopyByKernel, kSteps };

  // `process`: of the other rank.
  CopyRounds(CopyRings& rings, bool leads, int process);

  void run(Step step);
  bool refused() const { return rings_.refused; }

 private:
  // Where this round's part of the tensors begins.
  size_t begin() const;

  CopyRings& rings_;
  CopyRings::Side& mine_;
  CopyRings::Side& other_;
  const int process_;
  // The tensors that this rank gives and gets. Each round moves the next part, as long as a ring. A
  // tensor is longer than the caches that a core has to itself.
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
  size_t rounds_ = 0;
};

}  // namespace horon::ops
