// Collectives of the host on tensors of a device, and the pinned memory that these go through.
#include "horon/ops/cuda/staged_op.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>

#include "horon/ops/cuda/pinned_memory.h"
#include "horon/tests/support/host_gpu/host_cuda.h"
#include "horon/tests/support/long_enough.h"

namespace horon::ops {
namespace {

class OpBelow final : public core::CollectiveOp {
 public:
  explicit OpBelow(bool same_in_parts) : same_in_parts_(same_in_parts) {}
  std::string_view name() const override { return "below"; }
  std::string refusal(const core::BatchFacts&) const override { return ""; }
  core::PieceSizes piece_sizes(const core::Batch&) const override { return {1, 3, 2}; }
  bool same_in_parts(const core::Batch&) const override { return same_in_parts_; }
  std::unique_ptr<core::InFlight> start(core::Batch) override { return nullptr; }

 private:
  const bool same_in_parts_;
};

TEST(StagedOp, PiecesAreItsChunksWhereItCuts) {
  OpBelow one(false), cut(true);
  const StagedOp whole(one), in_chunks(cut);
  const core::Batch like;
  EXPECT_FALSE(whole.same_in_parts(like));
  EXPECT_EQ(whole.piece_sizes(like), (core::PieceSizes{1, 3, 2}));
  EXPECT_TRUE(in_chunks.same_in_parts(like));
  EXPECT_EQ(in_chunks.piece_sizes(like), core::chunk_sizes(like));
}

// To pin memory waits for all work of the device, also for work that waits for peers.
TEST(PinnedMemory, IsMadeWhileTheDeviceIsBusy) {
  constexpr size_t kBytes = 1000;
  const auto cuda = std::make_shared<test::HostCuda>();
  PinnedMemory memory(
      0, [cuda] { return cuda; }, [] { return true; });
  std::atomic<bool> peer_is_here{false};
  cuda->enqueue(static_cast<CudaQueue&>(memory.queue()).stream(),
                [&] { return peer_is_here.load(); });
  for (int question = 0; question < 20; ++question) {
    EXPECT_FALSE(memory.has_at_hand(kBytes));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  peer_is_here = true;
  while (!memory.has_at_hand(kBytes)) std::this_thread::yield();
  EXPECT_TRUE(memory.has_at_hand(kBytes));  // until it is taken
  const std::shared_ptr<std::byte> taken = memory.allocate(kBytes);
  ASSERT_NE(taken, nullptr);
  taken.get()[kBytes - 1] = std::byte{1};
  EXPECT_FALSE(memory.has_at_hand(kBytes)) << "the next one is another one";
}

// A buffer of the pool may come back before that memory is taken, and the next batch may want
// another length.
TEST(PinnedMemory, WhatNobodyTookServesTheNextOrMakesRoom) {
  const auto cuda = std::make_shared<test::HostCuda>();
  PinnedMemory memory(
      0, [cuda] { return cuda; }, [] { return true; });
  while (!memory.has_at_hand(1000)) std::this_thread::yield();
  std::atomic<bool> peer_is_here{false};
  cuda->enqueue(static_cast<CudaQueue&>(memory.queue()).stream(),
                [&] { return peer_is_here.load(); });
  EXPECT_TRUE(memory.has_at_hand(1000)) << "no other one is made";
  EXPECT_FALSE(memory.has_at_hand(3000));
  EXPECT_FALSE(memory.has_at_hand(2000)) << "one after the other";
  peer_is_here = true;
  while (!memory.has_at_hand(2000)) std::this_thread::yield();
  EXPECT_NE(memory.allocate(2000), nullptr);
}

// Counts the pieces that are out, and has no memory for those of one length.
class CountedPieces final : public test::HostCuda {
 public:
  static constexpr size_t kTooMuch = 3000;
  std::byte* allocate_pinned(size_t bytes) override {
    if (bytes == kTooMuch) throw Error(ErrorCode::Limit, "no memory to pin");
    ++pieces;
    return HostCuda::allocate_pinned(bytes);
  }
  void free_pinned(std::byte* memory) noexcept override {
    breaks_captures = breaks_captures || capture_mode() != kStaysOutOfCaptures;
    HostCuda::free_pinned(memory);
    --pieces;
  }
  std::atomic<int> pieces = 0;
  std::atomic<bool> breaks_captures = false;
};

bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kLongEnough;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(PinnedMemory, AllOfItIsGivenBack) {
  const auto cuda = std::make_shared<CountedPieces>();
  {
    PinnedMemory memory(
        0, [cuda] { return cuda; }, [] { return true; });
    EXPECT_TRUE(comes_true([&] { return memory.has_at_hand(1000); }));
    const std::shared_ptr<std::byte> longer = memory.allocate(2000);
    EXPECT_EQ(cuda->pieces, 2) << "the one at hand is too short for it";
    const std::shared_ptr<std::byte> taken = memory.allocate(1000);
    EXPECT_EQ(cuda->pieces, 2);
    EXPECT_TRUE(comes_true([&] { return memory.has_at_hand(4000); }));
    EXPECT_FALSE(memory.has_at_hand(5000)) << "it is still being made at the end";
  }
  EXPECT_TRUE(comes_true([&] { return cuda->pieces == 0; }));
  EXPECT_FALSE(cuda->breaks_captures);
}

TEST(PinnedMemory, AFailureIsOfThoseWhoWantThatLength) {
  const auto cuda = std::make_shared<CountedPieces>();
  PinnedMemory memory(
      0, [cuda] { return cuda; }, [] { return true; });
  EXPECT_FALSE(memory.has_at_hand(CountedPieces::kTooMuch));
  EXPECT_TRUE(comes_true([&] { return memory.has_at_hand(1000); }));
  EXPECT_THROW(comes_true([&] { return memory.has_at_hand(CountedPieces::kTooMuch); }), Error);
}

// Work on the way to the host waits for later work on the way back.
TEST(PinnedMemory, TheTwoWaysDoNotWaitForEachOther) {
  const auto cuda = std::make_shared<test::HostCuda>();
  PinnedMemory memory(
      0, [cuda] { return cuda; }, [] { return true; });
  const auto stream = [](core::MemoryQueue& queue) {
    return static_cast<CudaQueue&>(queue).stream();
  };
  std::atomic<bool> has_come_back{false};
  cuda->enqueue(stream(memory.queue()), [&] { return has_come_back.load(); });
  const auto there = memory.queue().record();
  EXPECT_FALSE(there->happened());
  cuda->enqueue(stream(memory.queue_back()), [&] { return has_come_back = true; });
  there->wait();
  EXPECT_TRUE(memory.queue_back().wait_for(*there)) << "where one does, it can";
}

}  // namespace
}  // namespace horon::ops
