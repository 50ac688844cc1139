// Allgathers and reducescatters that go by way of scratch in chunks, each of which has a stretch of
// every member's block.
#include <array>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/batch_chunks.h"
#include "horon/core/execution/chunked_batch.h"
#include "horon/tests/core/execution/executor_rank.h"
#include "horon/tests/core/execution/staged_rank.h"

namespace horon::core {
namespace chunks_of_blocks {
namespace {

using executor_world::batch;
using executor_world::list;
using staged_world::StagedRank;
using test::FakeDevice;
using testing::SizeIs;

constexpr int kMembers = 3;
constexpr int kMe = 1;
// Elements of each block in a chunk, of float32 among three members, where the longest block is a
// multiple of it.
constexpr int64_t kChunk =
    ChunkPlan::kBytes / kMembers / static_cast<int64_t>(sizeof(float)) / 64 * 64;

float element(int member, int64_t place) {
  return static_cast<float>((place * 7 + member * 100'003) % 1'000'003);
}

// What the op was given, put together again, and what it produced.
struct Seen {
  std::vector<Batch> chunks;
  std::vector<std::vector<float>> for_members = std::vector<std::vector<float>>(kMembers);
  int fails_at = -1;  // the n-th chunk, from 1 on
  std::mt19937 random{1};
};

// This rank's share of an allgather or a reducescatter among three members: what comes from the
// others is element(), and the reduced block is twice what this rank gives to it.
class ThreeRanksOp final : public CollectiveOp {
 public:
  ThreeRanksOp(Seen& seen, bool in_parts) : seen_(seen), in_parts_(in_parts) {}
  std::string_view name() const override { return "three_ranks"; }
  std::string refusal(const BatchFacts&) const override { return ""; }
  bool same_in_parts(const Batch&) const override { return in_parts_; }
  std::unique_ptr<InFlight> start(Batch chunk) override {
    seen_.chunks.push_back(chunk);
    return std::make_unique<Flight>(*this, std::move(chunk));
  }

 private:
  class Flight final : public InFlight {
   public:
    Flight(ThreeRanksOp& op, Batch chunk)
        : op_(op), chunk_(std::move(chunk)), number_(static_cast<int>(op.seen_.chunks.size())) {
      // Later chunks often end first.
      polls_ = std::uniform_int_distribution(0, 40)(op_.seen_.random);
      given_at_ = op_.given_;
      for (int member = 0; chunk_.kind == CollectiveKind::Reducescatter && member < kMembers;
           ++member) {
        op_.given_[static_cast<size_t>(member)] += chunk_.send_counts[static_cast<size_t>(member)];
      }
      if (chunk_.kind == CollectiveKind::Allgather) {
        for (int member = 0; member < kMembers; ++member) {
          begins_.push_back(op_.received_[static_cast<size_t>(member)]);
          op_.received_[static_cast<size_t>(member)] +=
              chunk_.receive_counts[static_cast<size_t>(member)];
        }
      }
    }
    Progress step() override {
      if (polls_-- > 0) return Progress::Polling;
      if (op_.seen_.fails_at == number_) {
        throw Error(ErrorCode::OperationFailed, "the other rank is gone");
      }
      if (chunk_.kind == CollectiveKind::Allgather) gather();
      if (chunk_.kind == CollectiveKind::Reducescatter) reduce();
      return Progress::Done;
    }

   private:
    void gather() {
      const auto* const mine = reinterpret_cast<const float*>(chunk_.input);
      auto* to = reinterpret_cast<float*>(chunk_.output);
      EXPECT_EQ(chunk_.count, chunk_.receive_counts[kMe]);
      for (int member = 0; member < kMembers; ++member) {
        const auto index = static_cast<size_t>(member);
        for (int64_t i = 0; i < chunk_.receive_counts[index]; ++i) {
          *to++ = member == kMe ? mine[i] : element(member, begins_[index] + i);
        }
      }
    }
    void reduce() {
      const auto* from = reinterpret_cast<const float*>(chunk_.input);
      auto* to = reinterpret_cast<float*>(chunk_.output);
      EXPECT_EQ(chunk_.count, chunk_.send_counts[kMe]);
      for (int member = 0; member < kMembers; ++member) {
        const auto index = static_cast<size_t>(member);
        std::vector<float>& given = op_.seen_.for_members[index];
        for (int64_t i = 0; i < chunk_.send_counts[index]; ++i) {
          if (member == kMe) *to++ = 2 * *from;
          const auto at = static_cast<size_t>(given_at_[index] + i);
          if (given.size() <= at) given.resize(at + 1);
          given[at] = *from++;
        }
      }
    }

    ThreeRanksOp& op_;
    const Batch chunk_;
    const int number_;
    int polls_ = 0;
    std::vector<int64_t> begins_;
    std::array<int64_t, kMembers> given_at_{};
  };

  Seen& seen_;
  const bool in_parts_;
  std::array<int64_t, kMembers> received_{}, given_{};
};

// A group of tensors. Tensor i has rows of widths[i] elements, and member m has rows[m] of them.
struct Group {
  Group(CollectiveKind kind_of_call, std::vector<int64_t> widths_of_parts,
        std::vector<int64_t> rows_of_members)
      : kind(kind_of_call),
        widths(std::move(widths_of_parts)),
        rows(std::move(rows_of_members)),
        outputs(widths.size()) {
    const bool gathers = kind == CollectiveKind::Allgather;
    const int64_t rows_here =
        gathers ? rows[kMe] : std::accumulate(rows.begin(), rows.end(), int64_t{0});
    int64_t place = 0;
    for (const int64_t width : widths) {
      std::vector<float>& part = inputs.emplace_back(static_cast<size_t>(rows_here * width));
      for (float& value : part) value = element(kMe, place++);
    }
  }

  EntryWork entry() {
    auto spec = std::make_shared<EntrySpec>();
    spec->device = DeviceKind::Cuda;
    spec->kind = kind;
    if (kind == CollectiveKind::Reducescatter) spec->splits = rows;
    EntryWork work;
    work.name = "group";
    for (size_t part = 0; part < widths.size(); ++part) {
      const auto rows_here = static_cast<int64_t>(inputs[part].size()) / widths[part];
      spec->parts.push_back({"part", {rows_here, widths[part]}});
      work.memory.push_back({reinterpret_cast<const std::byte*>(inputs[part].data()), nullptr,
                             static_cast<int64_t>(inputs[part].size())});
    }
    work.spec = spec;
    if (kind == CollectiveKind::Allgather) {
      for (const int64_t of_member : rows) {
        for (size_t part = 0; part < widths.size(); ++part) work.extents.push_back(of_member);
      }
    }
    work.allocate_output = [this](size_t part, int64_t elements, MemoryQueue&) -> std::byte* {
      if (!has_memory) return nullptr;
      outputs[part].assign(static_cast<size_t>(elements), -1);
      return reinterpret_cast<std::byte*>(outputs[part].data());
    };
    return work;
  }

  // The rows of each tensor that are for `member`, tensor by tensor.
  std::vector<float> packed_for(size_t member) const { return rows_of(inputs, member); }
  // The rows that come from `member`.
  std::vector<float> got_from(size_t member) const { return rows_of(outputs, member); }

  CollectiveKind kind;
  std::vector<int64_t> widths, rows;
  std::vector<std::vector<float>> inputs, outputs;
  bool has_memory = true;

 private:
  std::vector<float> rows_of(const std::vector<std::vector<float>>& parts, size_t member) const {
    const auto end = rows.begin() + static_cast<ptrdiff_t>(member);
    const int64_t first = std::accumulate(rows.begin(), end, int64_t{0});
    std::vector<float> out;
    for (size_t part = 0; part < widths.size(); ++part) {
      const auto begin = parts[part].begin() + first * widths[part];
      out.insert(out.end(), begin, begin + rows[member] * widths[part]);
    }
    return out;
  }
};

FakeDevice::Options late(uint32_t seed) {
  FakeDevice::Options options;
  options.delay_max = 20;
  options.seed = seed;
  return options;
}

struct OneRun {
  OneRun(Group& group, uint32_t seed, bool in_parts = true, bool joined = false)
      : rank(late(seed), ScratchPool::kNoLimit, std::make_unique<ThreeRanksOp>(seen, in_parts), kMe,
             kMembers) {
    EntryWork work = group.entry();
    if (joined) {
      work.mine = false;
      work.memory.clear();
    }
    rank.executor->enqueue(batch(0, list(std::move(work))));
    EXPECT_TRUE(rank.run());
    EXPECT_THAT(rank.finished, SizeIs(1));
    EXPECT_FALSE(rank.finished.front().error);
    EXPECT_EQ(rank.device->host_waits(), 0);
  }
  const EntryWork& entry() const { return rank.finished.front().entries.front(); }

  Seen seen;
  StagedRank rank;
};

void check_allgather(const Group& group, const OneRun& run) {
  for (int member = 0; member < kMembers; ++member) {
    const std::vector<float> got = group.got_from(static_cast<size_t>(member));
    size_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] != element(member, static_cast<int64_t>(i))) ++wrong;
    }
    EXPECT_EQ(wrong, 0U) << "from " << member << " of " << got.size();
  }
  std::vector<int64_t> received;
  for (size_t part = 0; part < group.widths.size(); ++part) {
    for (const int64_t rows : group.rows) received.push_back(rows * group.widths[part]);
  }
  EXPECT_EQ(run.rank.enqueued.front().entries.front().received, received);
}

void check_reducescatter(const Group& group, const OneRun& run) {
  for (size_t member = 0; member < kMembers; ++member) {
    EXPECT_EQ(run.seen.for_members[member], group.packed_for(member)) << member;
  }
  std::vector<float> expected = group.packed_for(kMe), got;
  for (float& value : expected) value *= 2;
  for (const std::vector<float>& part : group.outputs)
    got.insert(got.end(), part.begin(), part.end());
  EXPECT_EQ(got, expected);
}

// Rows of the members, near the ends of chunks: equal and unequal, and none on some members.
const std::vector<std::vector<int64_t>> kRows = {
    {kChunk, kChunk, kChunk},
    {kChunk + 1, kChunk + 1, kChunk + 1},
    {3 * kChunk + 5, 1, 0},
    {0, 6 * kChunk, kChunk - 1},
    {1, 0, 5 * kChunk + 1},
    {2 * kChunk, 2 * kChunk + 7, 9 * kChunk},
    {0, 0, 0},
};

size_t chunks_of(const std::vector<int64_t>& rows, int64_t width) {
  std::vector<int64_t> blocks;
  for (const int64_t of_member : rows) blocks.push_back(of_member * width);
  return static_cast<size_t>(plan_chunks_of_blocks(DataType::Float32, blocks).chunks);
}

TEST(ChunksOfBlocks, Allgather) {
  for (const std::vector<int64_t>& rows : kRows) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      Group group(CollectiveKind::Allgather, {1}, rows);
      const OneRun run(group, seed);
      check_allgather(group, run);
      EXPECT_THAT(run.seen.chunks, SizeIs(chunks_of(rows, 1)));
    }
  }
}

TEST(ChunksOfBlocks, Reducescatter) {
  for (const std::vector<int64_t>& rows : kRows) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      Group group(CollectiveKind::Reducescatter, {1}, rows);
      const OneRun run(group, seed);
      check_reducescatter(group, run);
      EXPECT_THAT(run.seen.chunks, SizeIs(chunks_of(rows, 1)));
    }
  }
}

// The tensors of a block lie across the ends of chunks.
TEST(ChunksOfBlocks, Groups) {
  for (const std::vector<int64_t>& widths :
       {std::vector<int64_t>{3, 1}, {1, 7, 2}, {5, 1, 1, 1, 1}}) {
    for (const std::vector<int64_t>& rows :
         {std::vector<int64_t>{kChunk / 2, kChunk, 3}, {0, 5, kChunk}}) {
      Group gathered(CollectiveKind::Allgather, widths, rows);
      check_allgather(gathered, OneRun(gathered, 1));
      Group reduced(CollectiveKind::Reducescatter, widths, rows);
      const OneRun run(reduced, 2);
      check_reducescatter(reduced, run);
      EXPECT_GT(run.seen.chunks.size(), 1U);
    }
  }
}

TEST(ChunksOfBlocks, AnOpThatFailsInTheMiddleEndsTheBatch) {
  for (const CollectiveKind kind : {CollectiveKind::Allgather, CollectiveKind::Reducescatter}) {
    for (const int fails_at : {1, 4, 9}) {
      Group group(kind, {1}, {9 * kChunk, 9 * kChunk, 9 * kChunk});
      Seen seen;
      seen.fails_at = fails_at;
      StagedRank rank(late(1), ScratchPool::kNoLimit, std::make_unique<ThreeRanksOp>(seen, true),
                      kMe, kMembers);
      rank.executor->enqueue(batch(0, list(group.entry())));
      for (int i = 0; i < 100'000 && rank.finished.empty(); ++i) rank.step();
      ASSERT_THAT(rank.finished, SizeIs(1));
      ASSERT_TRUE(rank.finished.front().error);
      const std::weak_ptr<const void> memory = rank.domain->latest;
      rank.executor.reset();
      rank.scratch.reset();
      EXPECT_FALSE(memory.expired()) << "peers may still write to it";
    }
  }
}

// The first chunk has all of the short blocks: three like it would be twice as much as all.
TEST(ChunksOfBlocks, ScratchIsHardlyMoreThanAllOfIt) {
  Group group(CollectiveKind::Allgather, {1}, {kChunk, kChunk, 3 * kChunk});
  const OneRun run(group, 1);
  EXPECT_THAT(run.seen.chunks, SizeIs(3));
  EXPECT_LE(run.rank.scratch->usage().bytes_peak,
            static_cast<size_t>(6 * kChunk + 2 * kChunk) * sizeof(float) * 5 / 4);
  check_allgather(group, run);
}

// However long the batch is, it takes no more scratch than four chunks of about kBytes, and the
// other side of each, which has a third of that; the pool rounds up.
TEST(ChunksOfBlocks, ScratchIsThatOfAFewChunks) {
  for (const CollectiveKind kind : {CollectiveKind::Allgather, CollectiveKind::Reducescatter}) {
    Group group(kind, {1}, {20 * kChunk, 20 * kChunk, 20 * kChunk});
    const OneRun run(group, 1);
    EXPECT_THAT(run.seen.chunks, SizeIs(20));
    EXPECT_LE(run.rank.scratch->usage().bytes_peak,
              static_cast<size_t>(ChunkPlan::kAtOnce * ChunkPlan::kBytes * 3 / 2));
    for (const Batch& chunk : run.seen.chunks) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk.input) % 64,
                reinterpret_cast<uintptr_t>(chunk.output) % 64);
    }
  }
}

TEST(ChunksOfBlocks, AnOpThatWouldChangeBitsGetsItWhole) {
  Group group(CollectiveKind::Reducescatter, {1}, {3 * kChunk, 3 * kChunk, 3 * kChunk});
  const OneRun run(group, 1, /*in_parts=*/false);
  EXPECT_THAT(run.seen.chunks, SizeIs(1));
  check_reducescatter(group, run);
}

TEST(ChunksOfBlocks, ARankWithoutMemoryForItsResultTakesPart) {
  for (const CollectiveKind kind : {CollectiveKind::Allgather, CollectiveKind::Reducescatter}) {
    Group group(kind, {1}, {3 * kChunk, 3 * kChunk, 3 * kChunk});
    group.has_memory = false;
    const OneRun run(group, 1);
    EXPECT_THAT(run.seen.chunks, SizeIs(3));
    ASSERT_TRUE(run.entry().error);
    EXPECT_THAT(run.entry().error->what(), testing::HasSubstr("has no memory for its result"));
  }
}

TEST(ChunksOfBlocks, ARankThatHasJoinedTakesPart) {
  Group group(CollectiveKind::Allgather, {1}, {3 * kChunk, 0, 5 * kChunk});
  const OneRun run(group, 1, /*in_parts=*/true, /*joined=*/true);
  EXPECT_THAT(run.seen.chunks, SizeIs(chunks_of(group.rows, 1)));
}

TEST(ChunksOfBlocks, TheLengthGoesByTheMembers) {
  const auto chunks = [](size_t members) {
    const std::vector<int64_t> blocks(members, 64 << 20);
    return plan_chunks_of_blocks(DataType::Int8, blocks).chunks;
  };
  EXPECT_EQ(chunks(1), 32);
  EXPECT_EQ(chunks(2), 64);
  EXPECT_EQ(chunks(8), 256);
  EXPECT_EQ(chunks(1000), 256) << "messages are long";
  // One that is much longer than the others has chunks for itself.
  std::vector<int64_t> to_one(100, 0);
  to_one[7] = 64 << 20;
  EXPECT_EQ(plan_chunks_of_blocks(DataType::Int8, to_one).chunks, 32);
  EXPECT_EQ(plan_chunks_of_blocks(DataType::Int8, std::vector<int64_t>(2, 0)).chunks, 1);
  // And many short ones beside it are no reason to cut.
  std::vector<int64_t> one_longer(64, 256 << 10);
  one_longer[3] = 1 << 20;
  EXPECT_EQ(plan_chunks_of_blocks(DataType::Int8, one_longer).chunks, 1);
}

}  // namespace
}  // namespace chunks_of_blocks
}  // namespace horon::core
