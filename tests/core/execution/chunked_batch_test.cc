// Batches that go by way of scratch in chunks.
#include "horon/core/execution/chunked_batch.h"

#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/execution/executor_rank.h"
#include "horon/tests/core/execution/staged_rank.h"

namespace horon::core {
namespace {

using executor_world::batch;
using executor_world::list;
using staged_world::StagedRank;
using test::FakeDevice;
using testing::Each;
using testing::HasSubstr;

// The shortest chunks that can be asked for, of float32.
constexpr int64_t kChunk = ChunkPlan::kBytesLeast / sizeof(float);

Batch batch_of(int64_t count, DataType dtype, int64_t piece_bytes = 1) {
  Batch out;
  out.count = count;
  out.dtype = dtype;
  out.piece_bytes = piece_bytes;
  return out;
}

TEST(ChunkPlan, ChunksAreAboutAsLong) {
  for (const DataType dtype :
       {DataType::Float32, DataType::Float64, DataType::BFloat16, DataType::Int8}) {
    const int64_t longest = ChunkPlan::kBytesLeast / static_cast<int64_t>(size_of(dtype));
    for (const int64_t count :
         {int64_t{0}, int64_t{1}, longest - 1, longest, longest + 1, 2 * longest, 2 * longest + 1,
          7 * longest + 13, 1000 * longest, (int64_t{1} << 32) + 1}) {
      const ChunkPlan plan = plan_chunks(batch_of(count, dtype));
      EXPECT_EQ(plan.is_cut(), count > longest) << count;
      int64_t sum = 0;
      for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        const int64_t elements = plan.stretch(chunk, count).count;
        EXPECT_LE(elements, longest);
        if (plan.chunks < 100) {
          EXPECT_GT(elements, plan.is_cut() ? longest / 4 : -1) << count;
        }
        EXPECT_GT(elements, plan.is_cut() ? 0 : -1) << count;
        sum += elements;
      }
      EXPECT_EQ(sum, count);
      EXPECT_EQ(plan.is_cut() ? plan.elements % ChunkPlan::kAlignment : 0, 0);
    }
  }
}

TEST(ChunkPlan, TheLengthIsThatOfPieces) {
  constexpr int64_t count = 100 << 20;
  EXPECT_EQ(plan_chunks(batch_of(count, DataType::Int8, 0)).chunks, 50);
  EXPECT_EQ(plan_chunks(batch_of(count, DataType::Int8, 4 << 20)).chunks, 25);
  EXPECT_EQ(plan_chunks(batch_of(count, DataType::Int8, 1)).chunks, 1600);
  EXPECT_EQ(plan_chunks(batch_of(count, DataType::Int8, int64_t{1} << 40)).chunks, 13);
  EXPECT_EQ(chunk_sizes(batch_of(count, DataType::Float32)),
            (PieceSizes{ChunkPlan::kBytesLeast, ChunkPlan::kBytesMost, ChunkPlan::kBytes}));
}

// A tensor of the tests below.
struct Tensor {
  explicit Tensor(int64_t count, bool is_in_place = true)
      : in_place(is_in_place), input(static_cast<size_t>(count)) {
    for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i % 251 + 1);
    original = input;
    if (!in_place) output.assign(input.size(), -1);
  }
  EntryWork entry(Compression compression = Compression::None) {
    auto spec = std::make_shared<EntrySpec>();
    spec->device = DeviceKind::Cuda;
    spec->piece_bytes = ChunkPlan::kBytesLeast;
    spec->compression = compression;
    spec->parts = {{"t", {static_cast<int64_t>(input.size())}}};
    if (compression == Compression::BFloat16) {
      spec->prescale = 0.5;
      spec->postscale = 4;
    }
    EntryWork work;
    work.name = "t";
    work.spec = spec;
    work.memory = {{bytes(input), bytes(result()), static_cast<int64_t>(input.size())}};
    return work;
  }
  std::vector<float>& result() { return in_place ? input : output; }
  // The number of results that are not `factor` times the input.
  size_t wrong(float factor) {
    size_t count = 0;
    for (size_t i = 0; i < original.size(); ++i) {
      if (result()[i] != factor * original[i]) ++count;
    }
    if (!in_place && input != original) ++count;
    return count;
  }
  static std::byte* bytes(std::vector<float>& values) {
    return reinterpret_cast<std::byte*>(values.data());
  }

  bool in_place;
  std::vector<float> input, output, original;
};

// A device that works late; the seed also determines how late.
FakeDevice::Options late(uint32_t seed) {
  FakeDevice::Options options;
  options.delay_max = seed % 2 == 0 ? 3 : 30;
  options.seed = seed;
  return options;
}

// Lengths of whole batches, near the ends of chunks.
const std::vector<int64_t> kCounts = {
    0,          1,          kChunk - 1,     kChunk,         kChunk + 1,
    2 * kChunk, 4 * kChunk, 4 * kChunk + 1, 5 * kChunk - 1, 9 * kChunk + 77};

TEST(ChunkedBatch, EveryLength) {
  for (const int64_t count : kCounts) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      StagedRank rank(late(seed));
      Tensor tensor(count, seed != 2);
      rank.executor->enqueue(batch(0, list(tensor.entry())));
      ASSERT_TRUE(rank.run());
      EXPECT_EQ(tensor.wrong(2), 0U) << count;
      const int64_t chunks = plan_chunks(batch_of(count, DataType::Float32)).chunks;
      EXPECT_EQ(rank.script->started.size(), static_cast<size_t>(chunks));
      for (const Batch& chunk : rank.script->started) {
        EXPECT_EQ(chunk.piece_bytes, chunks == 1 ? ChunkPlan::kBytesLeast : 0) << "the op chooses";
      }
      ASSERT_EQ(rank.finished.size(), 1U);
      EXPECT_FALSE(rank.finished[0].error);
      ASSERT_EQ(rank.enqueued.size(), 1U) << "for the user it is one";
      EXPECT_TRUE(rank.enqueued[0].done->happened());
      EXPECT_EQ(rank.device->host_waits(), 0);
    }
  }
}

TEST(ChunkedBatch, TheTimelineShowsOneCollective) {
  StagedRank rank(late(1));
  Tensor tensor(8 * kChunk);
  rank.executor->enqueue(batch(0, list(tensor.entry())));
  ASSERT_TRUE(rank.run());
  EXPECT_THAT(rank.bars->all, testing::ElementsAre("prepare: ", "collective: two_ranks, 512 KiB"));
}

TEST(ChunkedBatch, TensorsLieAcrossTheEndsOfChunks) {
  for (const Compression compression : {Compression::None, Compression::BFloat16}) {
    for (uint32_t seed = 1; seed <= 5; ++seed) {
      StagedRank rank(late(seed));
      Tensor first(3), second(3 * kChunk + 5, false), third(0), fourth(2 * kChunk + 11),
          fifth(1, false);
      rank.executor->enqueue(batch(
          0, list(first.entry(compression), second.entry(compression), third.entry(compression),
                  fourth.entry(compression), fifth.entry(compression))));
      ASSERT_TRUE(rank.run());
      const float factor = compression == Compression::None ? 2 : 0.5F * 2 * 4;
      for (Tensor* const tensor : {&first, &second, &third, &fourth, &fifth}) {
        EXPECT_EQ(tensor->wrong(factor), 0U) << seed;
      }
      EXPECT_GT(rank.script->started.size(), 2U);
    }
  }
}

EntryWork broadcast(Tensor& tensor, int root) {
  EntryWork work = tensor.entry();
  auto spec = std::make_shared<EntrySpec>(*work.spec);
  spec->kind = CollectiveKind::Broadcast;
  spec->root = root;
  spec->piece_bytes = 0;
  work.spec = spec;
  return work;
}

TEST(ChunkedBatch, Broadcast) {
  constexpr int64_t count = 5 * (ChunkPlan::kBytes / static_cast<int64_t>(sizeof(float))) + 3;
  for (const bool in_place : {true, false}) {
    StagedRank source(late(1)), other(late(2));
    Tensor sent(count, in_place), received(count, in_place);
    source.executor->enqueue(batch(0, list(broadcast(sent, 0))));
    other.executor->enqueue(batch(0, list(broadcast(received, 1))));
    ASSERT_TRUE(source.run());
    ASSERT_TRUE(other.run());
    EXPECT_EQ(source.script->started.size(), 6U);
    EXPECT_EQ(sent.wrong(1), 0U);
    std::vector<float> expected(static_cast<size_t>(count));
    std::iota(expected.begin(), expected.end(), 1.0F);
    EXPECT_EQ(received.result(), expected);
  }
}

// The program may be reading what it sends.
TEST(ChunkedBatch, WhatIsBroadcastInPlaceIsNotWritten) {
  for (const int64_t count : {kChunk, 5 * ChunkPlan::kBytes / 4}) {
    StagedRank source;
    Tensor sent(count);
    source.script->may_end = [&](size_t) {
      sent.input.front() = -7;
      return true;
    };
    source.executor->enqueue(batch(0, list(broadcast(sent, 0))));
    ASSERT_TRUE(source.run());
    EXPECT_EQ(sent.input.front(), -7);
  }
}

TEST(ChunkedBatch, ARankThatHasJoinedGivesZeros) {
  StagedRank rank(late(1));
  Tensor tensor(7 * kChunk + 1);
  EntryWork work = tensor.entry();
  work.mine = false;
  work.memory.clear();
  rank.executor->enqueue(batch(0, list(std::move(work))));
  ASSERT_TRUE(rank.run());
  EXPECT_EQ(rank.script->started.size(), 8U);
  EXPECT_FALSE(rank.script->saw_other_than_zero);
}

// A chunk ends only when the next one has been copied in, and the one before has been copied back.
// If the three steps ran one after another, this would never end.
TEST(ChunkedBatch, CopyingAndReducingGoOnAtTheSameTime) {
  constexpr size_t chunks = 9;
  StagedRank rank;
  Tensor tensor(static_cast<int64_t>(chunks) * kChunk);
  for (size_t i = 0; i < tensor.input.size(); ++i) {
    tensor.input[i] = static_cast<float>(i / kChunk + 1);
  }
  tensor.original = tensor.input;
  size_t met = 0;
  rank.script->may_end = [&](size_t n) {
    const auto& started = rank.script->started;
    const auto places = static_cast<size_t>(ChunkPlan::kAtOnce);
    const auto* const scratch = reinterpret_cast<const float*>(started[0].input);
    const float next_in = n + 1 == chunks ? 0 : scratch[(n + 1) % places * kChunk];
    const bool next_is_in = n + 1 == chunks || next_in == static_cast<float>(n + 2);
    const bool last_is_back = n == 0 || tensor.input[n * kChunk - 1] == static_cast<float>(2 * n);
    if (next_is_in && last_is_back) ++met;
    return next_is_in && last_is_back;
  };
  rank.executor->enqueue(batch(0, list(tensor.entry())));
  ASSERT_TRUE(rank.run());
  EXPECT_EQ(met, chunks);
  EXPECT_EQ(tensor.wrong(2), 0U);
  EXPECT_LE(rank.scratch->usage().bytes_peak,
            static_cast<size_t>(ChunkPlan::kAtOnce * ChunkPlan::kBytesLeast));
}

// Shows that the tests above would notice it.
TEST(ChunkedBatch, ADeviceThatForgetsToWaitGivesOtherResults) {
  size_t wrong = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    FakeDevice::Options options = late(seed);
    options.delay_max = 20;
    options.loses_waits = true;
    StagedRank rank(options);
    Tensor tensor(9 * kChunk);
    rank.executor->enqueue(batch(0, list(tensor.entry())));
    ASSERT_TRUE(rank.run());
    wrong += tensor.wrong(2);
  }
  EXPECT_GT(wrong, 0U);
}

// The op finds its peers by the order of start. The tensors of the second batch are copied in
// meanwhile, and it starts while the last chunk of the first is under way.
TEST(ChunkedBatch, LaterBatchesStartBehindTheLastChunk) {
  StagedRank rank(late(3));
  Tensor first(6 * kChunk), second(3), third(5 * kChunk), fourth(2 * kChunk);
  bool has_other_copy = false;
  rank.script->may_end = [&](size_t n) {
    if (n == 0) has_other_copy = rank.scratch->usage().bytes > 5 * ChunkPlan::kBytesLeast;
    if (n == 5) return rank.script->started.size() > 6;
    return n > 0 || has_other_copy;
  };
  uint64_t sequence = 0;
  for (Tensor* const tensor : {&first, &second, &third, &fourth}) {
    rank.executor->enqueue(batch(sequence++, list(tensor->entry())));
  }
  ASSERT_TRUE(rank.run());
  std::vector<uint64_t> sequences;
  for (const Batch& started : rank.script->started) sequences.push_back(started.sequence);
  EXPECT_THAT(sequences, testing::ElementsAre(0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3));
  EXPECT_TRUE(has_other_copy);
  for (Tensor* const tensor : {&first, &second, &third, &fourth}) EXPECT_EQ(tensor->wrong(2), 0U);
}

// All batches use the same scratch, one after the other.
TEST(ChunkedBatch, ScratchIsUsedAgainOnceItHasBeenCopiedBack) {
  constexpr size_t room = 6 * ChunkPlan::kBytesLeast;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    StagedRank rank(late(seed), room);
    std::vector<std::unique_ptr<Tensor>> tensors;
    for (uint64_t i = 0; i < 12; ++i) {
      tensors.push_back(std::make_unique<Tensor>(i % 3 == 2 ? kChunk : 5 * kChunk + 1));
      rank.executor->enqueue(batch(i, list(tensors.back()->entry())));
    }
    ASSERT_TRUE(rank.run());
    for (const auto& tensor : tensors) EXPECT_EQ(tensor->wrong(2), 0U) << seed;
    EXPECT_LE(rank.scratch->usage().bytes_peak, room);
  }
}

TEST(ChunkedBatch, AnOpThatFailsInTheMiddleEndsTheBatch) {
  for (const int fails_at : {0, 3, 8}) {
    StagedRank rank(late(static_cast<uint32_t>(fails_at) + 1));
    rank.script->fails_at = fails_at;
    Tensor tensor(9 * kChunk), later(3);
    rank.executor->enqueue(batch(0, list(tensor.entry())));
    rank.executor->enqueue(batch(1, list(later.entry())));
    for (int i = 0; i < 100'000 && rank.finished.empty(); ++i) rank.step();
    ASSERT_EQ(rank.finished.size(), 1U);
    ASSERT_TRUE(rank.finished[0].error);
    EXPECT_THAT(rank.finished[0].error->what(), HasSubstr("the other rank is gone"));
    if (fails_at < 8) {
      EXPECT_EQ(rank.script->started.back().sequence, 0U) << "the peers would take it for a chunk";
    }
    EXPECT_TRUE(rank.enqueued.empty());
    EXPECT_EQ(rank.script->destroyed, rank.script->ended) << "peers may still use what is not over";
    const std::weak_ptr<const void> memory = rank.domain->latest;
    rank.executor.reset();
    rank.scratch.reset();
    EXPECT_FALSE(memory.expired()) << "peers may still write to it";
  }
}

TEST(ChunkedBatch, ADeviceThatFailsInTheMiddleEndsTheBatch) {
  for (int fails_at = 0; fails_at < 30; ++fails_at) {
    FakeDevice::Options options = late(1);
    options.fails_at = fails_at;
    StagedRank rank(options);
    Tensor tensor(9 * kChunk);
    rank.executor->enqueue(batch(0, list(tensor.entry())));
    for (int i = 0; i < 100'000 && rank.finished.empty(); ++i) rank.step();
    ASSERT_EQ(rank.finished.size(), 1U) << fails_at;
    ASSERT_TRUE(rank.finished[0].error) << fails_at;
    EXPECT_THAT(rank.finished[0].error->what(), HasSubstr("the fake device failed"));
    EXPECT_EQ(rank.script->destroyed, rank.script->ended);
  }
}

TEST(ChunkedBatch, AJobThatEndsInTheMiddleKeepsWhatIsUnderWay) {
  StagedRank rank;
  rank.script->may_end = [](size_t n) { return n < 3; };
  Tensor tensor(9 * kChunk);
  rank.executor->enqueue(batch(0, list(tensor.entry())));
  for (int i = 0; i < 1000; ++i) rank.step();
  EXPECT_EQ(rank.script->ended, 3U);
  rank.executor->abandon();
  rank.executor.reset();
  EXPECT_EQ(rank.script->destroyed, 3U);
}

}  // namespace
}  // namespace horon::core
