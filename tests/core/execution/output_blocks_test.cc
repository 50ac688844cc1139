// Results that may go into several blocks of memory: who decides that they do.
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/executor.h"
#include "horon/tests/support/fake_device.h"

namespace horon::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// An op that is done at once, and notes where it should write.
class NotingOp final : public CollectiveOp {
 public:
  struct Notes {
    bool writes_blocks_apart = true;
    std::byte* output = nullptr;
    std::vector<std::byte*> blocks;
  };
  explicit NotingOp(Notes& notes) : notes_(notes) {}
  std::string_view name() const override { return "noting"; }
  std::string refusal(const BatchFacts&) const override { return ""; }
  bool writes_blocks_apart() const override { return notes_.writes_blocks_apart; }
  std::unique_ptr<InFlight> start(Batch batch) override {
    notes_.output = batch.output;
    notes_.blocks = std::move(batch.output_blocks);
    return std::make_unique<Finished>();
  }

 private:
  class Finished final : public InFlight {
   public:
    Progress step() override { return Progress::Done; }
  };
  Notes& notes_;
};

// Rank 0 of two: gathers two elements from itself and one from the other.
class OutputBlocks : public testing::Test {
 protected:
  OutputBlocks() {
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(std::make_unique<NotingOp>(notes_));
    Executor::Parts parts;
    parts.size = 2;
    parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
    parts.scratch = test::scratch_of(std::make_unique<test::FakeDomain>(DeviceKind::Host));
    executor_ = std::make_unique<Executor>(std::move(parts));
  }

  void gather(std::vector<OutputBlock> blocks, std::vector<int64_t> rows = {2, 1}) {
    auto spec = std::make_shared<EntrySpec>();
    spec->kind = CollectiveKind::Allgather;
    spec->parts = {{"t", {rows.front()}}};
    EntryWork work;
    work.name = "t";
    work.spec = spec;
    work.memory = {{bytes(input_), nullptr, rows.front()}};
    work.extents = std::move(rows);
    work.output_blocks = std::move(blocks);
    work.allocate_output = [this](size_t, int64_t elements, MemoryQueue&) {
      EXPECT_EQ(elements, 3);
      return bytes(whole_);
    };
    BatchWork batch;
    batch.sequence = sequence_++;
    batch.entries.push_back(std::move(work));
    executor_->enqueue(std::move(batch));
    std::vector<FinishedBatch> finished;
    std::vector<EnqueuedBatch> enqueued;
    for (int i = 0; i < 10 && finished.empty(); ++i) (void)executor_->step(finished, enqueued);
    ASSERT_EQ(finished.size(), 1U);
    EXPECT_FALSE(finished[0].error);
    EXPECT_FALSE(finished[0].entries[0].error);
  }
  static std::byte* bytes(std::vector<float>& data) {
    return reinterpret_cast<std::byte*>(data.data());
  }

  NotingOp::Notes notes_;
  std::unique_ptr<Executor> executor_;
  uint64_t sequence_ = 0;
  std::vector<float> input_ = {1, 2}, from_zero_ = {0, 0}, from_one_ = {0}, whole_ = {0, 0, 0};
};

TEST_F(OutputBlocks, AnOpThatCanWritesThere) {
  gather({{bytes(from_zero_), 2}, {bytes(from_one_), 1}});
  EXPECT_EQ(notes_.output, nullptr);
  EXPECT_THAT(notes_.blocks, ElementsAre(bytes(from_zero_), bytes(from_one_)));
  gather({});
  EXPECT_EQ(notes_.output, bytes(whole_));
  EXPECT_THAT(notes_.blocks, IsEmpty());
}

TEST_F(OutputBlocks, AnotherOpWritesOneStretch) {
  notes_.writes_blocks_apart = false;
  gather({{bytes(from_zero_), 2}, {bytes(from_one_), 1}});
  EXPECT_EQ(notes_.output, bytes(whole_));
  EXPECT_THAT(notes_.blocks, IsEmpty());
}

TEST_F(OutputBlocks, ThoseOfOtherLengthsAreNotWritten) {
  gather({{bytes(from_zero_), 2}, {bytes(from_one_), 2}});
  EXPECT_EQ(notes_.output, bytes(whole_));
  EXPECT_THAT(notes_.blocks, IsEmpty());
  gather({{bytes(from_zero_), 1}, {bytes(from_one_), 2}});
  EXPECT_EQ(notes_.output, bytes(whole_)) << "as many elements, divided otherwise";
}

TEST_F(OutputBlocks, AResultWithoutElementsNeedsNoMemory) {
  gather({{nullptr, 0}, {nullptr, 0}}, {0, 0});
  EXPECT_EQ(notes_.output, nullptr);
  gather({{bytes(from_zero_), 2}, {nullptr, 0}}, {0, 0});
  EXPECT_EQ(notes_.output, nullptr);
  EXPECT_THAT(notes_.blocks, IsEmpty());
}

}  // namespace
}  // namespace horon::core
