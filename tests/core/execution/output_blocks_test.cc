// The memory of results that move rows: results that may go into several blocks, and who decides
// that they do; results for which there is no memory.
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/executor.h"
#include "horon/tests/core/execution/executor_rank.h"
#include "horon/tests/support/fake_device.h"

namespace horon::core {
namespace {

using namespace executor_world;  // NOLINT(google-build-using-namespace)
using testing::ElementsAre;
using testing::HasSubstr;
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

// Gathers what a rank has, in as many tensors as there are results.
EntryWork gather_of(std::vector<float>& data, std::vector<std::vector<float>>& results,
                    std::vector<int64_t> rows) {
  EntryWork work = entry(1, data);
  EntrySpec spec = *work.spec;
  spec.kind = CollectiveKind::Allgather;
  spec.parts.clear();
  work.memory.clear();
  const size_t each = data.size() / results.size();
  for (size_t part = 0; part < results.size(); ++part) {
    spec.parts.push_back({"t", {static_cast<int64_t>(each)}});
    work.memory.push_back({reinterpret_cast<std::byte*>(data.data() + part * each), nullptr,
                           static_cast<int64_t>(each)});
  }
  work.spec = std::make_shared<const EntrySpec>(spec);
  work.extents = std::move(rows);
  work.allocate_output = [&results](size_t part, int64_t elements, MemoryQueue&) {
    results[part].resize(static_cast<size_t>(elements));
    return reinterpret_cast<std::byte*>(results[part].data());
  };
  return work;
}

// Its handle alone gets the error, and the other rank gets the elements.
TEST_P(ExecutorContract, ARankWithoutMemoryForItsResultTakesPart) {
  for (const size_t tensors : {1, 2}) {
    for (const ErrorCode code : {ErrorCode::OperationFailed, ErrorCode::InvalidArgument}) {
      const auto meeting = std::make_shared<test::FakeMeeting>(2);
      Rank zero(GetParam(), 0, 2, meeting, {}), one(GetParam(), 1, 2, meeting, {});
      std::vector<float> mine = {1, 2, 3, 4}, others = {5, 6};
      std::vector<std::vector<float>> of_zero(tensors), of_one(tensors);
      const std::vector<int64_t> rows =
          tensors == 1 ? std::vector<int64_t>{4, 2} : std::vector<int64_t>{2, 2, 1, 1};
      EntryWork refused = gather_of(mine, of_zero, rows);
      refused.allocate_output = [code](size_t, int64_t, MemoryQueue&) -> std::byte* {
        throw Error(code, "it is refused");
      };
      zero.executor->enqueue(batch(0, list(std::move(refused))));
      one.executor->enqueue(batch(0, list(gather_of(others, of_one, rows))));
      run_both(zero, one);
      // The fake op gathers without regard to the tensors.
      EXPECT_EQ(of_one.front(), tensors == 1 ? std::vector<float>({1, 2, 3, 4, 5, 6})
                                             : std::vector<float>({1, 2, 5}));
      ASSERT_EQ(zero.finished.size(), 1U);
      EXPECT_FALSE(zero.finished[0].error);
      const std::optional<Error> error = zero.enqueued.empty() ? zero.finished[0].entries[0].error
                                                               : zero.enqueued[0].entries[0].error;
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), code);
      EXPECT_THAT(error->what(), HasSubstr("it is refused"));
      const bool is_lacking = code != ErrorCode::InvalidArgument;
      EXPECT_EQ(std::string(error->what()).find("has no memory") != std::string::npos, is_lacking);
    }
  }
}

// It comes in 16 bits and is not packed: only the way back is a copy.
TEST_P(ExecutorContract, TheResultOfANarrowedEntryIsThereWhenItsBatchHasFinished) {
  Rank rank(GetParam(), 0, 1, std::make_shared<FakeMeeting>(1), {.copy_polls = 5});
  std::vector<uint16_t> narrow(3, 0x3f80);  // 1 in bfloat16
  std::vector<float> result(3, -1);
  EntryWork work = entry(1, result);
  auto spec = std::make_shared<EntrySpec>(*work.spec);
  spec->compression = Compression::BFloat16;
  spec->postscale = 2;
  work.spec = spec;
  work.narrowed = true;
  work.memory.front().input = reinterpret_cast<std::byte*>(narrow.data());
  rank.executor->enqueue(batch(0, list(std::move(work))));
  for (int i = 0; i < 100 && rank.finished.empty(); ++i) {
    (void)rank.device->turn();
    rank.step_executor();
  }
  ASSERT_EQ(rank.finished.size(), 1U);
  EXPECT_THAT(result, ElementsAre(2, 2, 2));
  EXPECT_EQ(rank.domain->allocations(), 0);
}

// A tensor library has no address for nothing.
TEST_P(ExecutorContract, ATensorOfAGroupToWhichNobodyGivesElementsNeedsNoMemory) {
  Rank rank(GetParam(), 0, 1, std::make_shared<test::FakeMeeting>(1), {});
  std::vector<float> mine = {1, 2};
  std::vector<std::vector<float>> results(1);
  EntryWork work = gather_of(mine, results, {2, 0});
  EntrySpec spec = *work.spec;
  spec.parts.push_back({"u", {0}});
  work.spec = std::make_shared<const EntrySpec>(spec);
  work.memory.push_back({nullptr, nullptr, 0});
  const AllocateOutput allocate = work.allocate_output;
  work.allocate_output = [&](size_t part, int64_t elements, MemoryQueue& queue) {
    EXPECT_EQ(part, 0U);
    return allocate(0, elements, queue);
  };
  rank.executor->enqueue(batch(0, list(std::move(work))));
  rank.run();
  ASSERT_EQ(rank.finished.size(), 1U);
  EXPECT_THAT(results, ElementsAre(ElementsAre(1, 2)));
}

TEST_P(ExecutorContract, ARankThatHasJoinedTakesPartInAGatherOfAGroup) {
  const auto meeting = std::make_shared<test::FakeMeeting>(2);
  Rank zero(GetParam(), 0, 2, meeting, {}), one(GetParam(), 1, 2, meeting, {});
  std::vector<float> mine = {1, 2};
  std::vector<std::vector<float>> results(2);
  EntryWork given = gather_of(mine, results, {1, 1, 0, 0});
  EntryWork joined;
  joined.spec = given.spec;
  joined.extents = given.extents;
  joined.mine = false;
  zero.executor->enqueue(batch(0, list(std::move(given))));
  one.executor->enqueue(batch(0, list(std::move(joined))));
  run_both(zero, one);
  EXPECT_THAT(results, ElementsAre(ElementsAre(1), ElementsAre(2)));
  ASSERT_EQ(one.finished.size(), 1U);
  EXPECT_FALSE(one.finished[0].error);
}

}  // namespace
}  // namespace horon::core
