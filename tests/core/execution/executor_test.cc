// The executor with a device that delays, reorders and fails work, as CUDA will.
#include "horon/core/execution/executor.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/neutral.h"
#include "horon/tests/core/execution/executor_rank.h"
#include "horon/tests/support/fake_device.h"

namespace horon::core {
namespace {

using namespace executor_world;
using test::FakeEvent;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_P(ExecutorContract, RunsOneEntryInPlace) {
  Rank rank(GetParam(), 0, 1, std::make_shared<FakeMeeting>(1), {.op_polls = 3});
  std::vector<float> data = {1, 2, 3};
  rank.executor->enqueue(batch(0, list(entry(7, data))));
  rank.run();
  ASSERT_EQ(rank.finished.size(), 1U);
  EXPECT_FALSE(rank.finished[0].error);
  EXPECT_EQ(rank.finished[0].entries[0].ticket, 7U);
  EXPECT_THAT(data, ElementsAre(1, 2, 3));
}

TEST_P(ExecutorContract, PacksSeveralEntriesWithLateCopies) {
  const auto meeting = std::make_shared<FakeMeeting>(2);
  Rank zero(GetParam(), 0, 2, meeting, {.op_polls = 2, .copy_polls = 5});
  Rank one(GetParam(), 1, 2, meeting, {.op_polls = 0, .copy_polls = 1});
  std::vector<float> a0 = {1, 2}, b0 = {3}, empty0, a1 = {10, 20}, b1 = {30}, empty1;
  zero.executor->enqueue(batch(0, list(entry(1, a0), entry(2, empty0), entry(3, b0))));
  one.executor->enqueue(batch(0, list(entry(1, a1), entry(2, empty1), entry(3, b1))));
  run_both(zero, one);
  EXPECT_THAT(a0, ElementsAre(11, 22));
  EXPECT_THAT(b0, ElementsAre(33));
  EXPECT_EQ(a0, a1);
  EXPECT_EQ(b0, b1);
}

TEST_P(ExecutorContract, ReadsInputAndWritesOutput) {
  Rank rank(GetParam(), 0, 1, std::make_shared<FakeMeeting>(1), {.copy_polls = 2});
  std::vector<float> in = {1, 2, 3}, out(3, 0), tail_in = {4}, tail_out = {0};
  const auto part = [](std::vector<float>& from, std::vector<float>& to) {
    return MemoryPart{reinterpret_cast<std::byte*>(from.data()),
                      reinterpret_cast<std::byte*>(to.data()), static_cast<int64_t>(from.size())};
  };
  auto spec = std::make_shared<EntrySpec>();
  spec->device = DeviceKind::Cuda;
  spec->parts = {{"a", {3}}, {"b", {}}};
  EntryWork work = entry(1, in, {part(in, out), part(tail_in, tail_out)});
  work.spec = spec;
  rank.executor->enqueue(batch(0, list(std::move(work))));
  rank.run();
  EXPECT_THAT(out, ElementsAre(1, 2, 3));
  EXPECT_THAT(tail_out, ElementsAre(4));
}

// Adasum treats each tensor as a vector of its own. Other reductions need not know the tensors.
TEST_P(ExecutorContract, AdasumIsToldTheTensorsOfABatch) {
  const auto meeting = std::make_shared<FakeMeeting>(1);
  Rank rank(GetParam(), 0, 1, meeting, {});
  std::vector<float> alone(2), nothing, pair(4);
  const auto reduced_by = [&](ReduceOp op) {
    auto* const bytes = reinterpret_cast<std::byte*>(pair.data());
    std::vector<EntryWork> works =
        list(entry(1, alone), entry(2, nothing),
             entry(3, pair, {{bytes, bytes, 3}, {bytes + 12, bytes + 12, 1}}));
    for (EntryWork& work : works) {
      EntrySpec spec = *work.spec;
      spec.reduce_op = op;
      if (work.ticket == 3) spec.parts = {{"a", {3, 1}}, {"b", {}}};
      work.spec = std::make_shared<EntrySpec>(spec);
    }
    return works;
  };
  rank.executor->enqueue(batch(0, reduced_by(ReduceOp::Adasum)));
  rank.executor->enqueue(batch(1, reduced_by(ReduceOp::Sum)));
  rank.run();
  EXPECT_THAT(meeting->tensor_counts(0), ElementsAre(2, 0, 3, 1));
  EXPECT_THAT(meeting->tensor_counts(1), ElementsAre());
}

TEST_P(ExecutorContract, StartsInOrderThoughLaterBatchesAreReadyFirst) {
  const auto meeting = std::make_shared<FakeMeeting>(1);
  Rank rank(GetParam(), 0, 1, meeting, {.op_polls = 1});
  std::vector<float> slow = {1}, fast = {2};
  EntryWork late = entry(1, slow);
  late.ready = std::make_unique<FakeEvent>(20);
  rank.executor->enqueue(batch(0, list(std::move(late))));
  rank.executor->enqueue(batch(1, list(entry(2, fast))));
  rank.run();
  EXPECT_THAT(meeting->started(0), ElementsAre(0, 1));
  EXPECT_EQ(rank.finished.size(), 2U);
}

TEST_P(ExecutorContract, PaceTellsWhetherAnybodyWillRing) {
  Rank rank(GetParam(), 0, 1, std::make_shared<FakeMeeting>(1), {.op_polls = 100});
  std::vector<float> data = {1};
  EXPECT_EQ(rank.step(), Executor::Pace::Idle);
  rank.executor->enqueue(batch(0, list(entry(1, data))));
  EXPECT_EQ(rank.step(), Executor::Pace::Polling);
}

// Where ops are enqueued, nothing happens after one that has failed.
TEST_P(ExecutorContract, AFailedOpIsAValueAndTheNextBatchStillRuns) {
  const auto meeting = std::make_shared<FakeMeeting>(1);
  Rank rank(GetParam(), 0, 1, meeting, {.fail_op_at_sequence = 0});
  std::vector<float> a = {1}, b = {2};
  rank.executor->enqueue(batch(0, list(entry(1, a))));
  rank.executor->enqueue(batch(1, list(entry(2, b))));
  for (int i = 0; i < 20; ++i) rank.step();
  const bool goes_on = GetParam() != test::FakeMemory::Enqueued;
  ASSERT_EQ(rank.finished.size(), goes_on ? 2U : 1U);
  ASSERT_TRUE(rank.finished[0].error);
  EXPECT_EQ(rank.finished[0].error->code(), ErrorCode::OperationFailed);
  EXPECT_EQ(rank.finished.back().error.has_value(), !goes_on);
  rank.executor->abandon();
}

// Otherwise the peers would take the collective of the next batch for that of this one.
TEST(Executor, NothingStartsInThePassInWhichABatchFindsNoOp) {
  Rank rank(FakeMemory::Immediate, 0, 1, std::make_shared<FakeMeeting>(1), {});
  std::vector<float> a = {1}, b = {2};
  EntryWork nobodys = entry(1, a);
  EntrySpec spec = *nobodys.spec;
  spec.device = DeviceKind::Host;  // which the only op does not take
  nobodys.spec = std::make_shared<const EntrySpec>(spec);
  rank.executor->enqueue(batch(0, list(std::move(nobodys))));
  rank.executor->enqueue(batch(1, list(entry(2, b))));
  EXPECT_EQ(rank.step_executor(), Executor::Pace::Busy);
  ASSERT_EQ(rank.finished.size(), 1U);
  ASSERT_TRUE(rank.finished[0].error);
  EXPECT_THAT(rank.finished[0].error->what(), HasSubstr("wrong device"));
}

TEST_P(ExecutorContract, AFailedReadyEventFailsItsBatch) {
  Rank rank(GetParam(), 0, 1, std::make_shared<FakeMeeting>(1), {});
  std::vector<float> a = {1};
  EntryWork work = entry(1, a);
  work.ready = std::make_unique<FakeEvent>(3, true);
  rank.executor->enqueue(batch(0, list(std::move(work))));
  rank.run();
  ASSERT_TRUE(rank.finished.at(0).error);
  EXPECT_THAT(rank.finished[0].error->what(), HasSubstr("fake device failed"));
}

TEST_P(ExecutorContract, AbandonKeepsWhatIsInFlightForEver) {
  const auto meeting = std::make_shared<FakeMeeting>(2);  // the other rank never comes
  int aborts = 0;
  Rank rank(GetParam(), 0, 2, meeting, {.on_abort = [&](int) { ++aborts; }});
  std::vector<float> a = {1}, b = {2};
  const auto owned = std::make_shared<int>(), in_line = std::make_shared<int>();
  EntryWork owner = entry(1, a);
  owner.allocate_output = [owned](size_t, int64_t, MemoryQueue&) { return nullptr; };
  rank.executor->enqueue(batch(0, list(std::move(owner))));
  for (uint64_t i = 1; i < Executor::kUnderWayMax; ++i) {
    rank.executor->enqueue(batch(i, list(entry(i + 1, b))));
  }
  EntryWork waiting = entry(0, b);
  waiting.allocate_output = [in_line](size_t, int64_t, MemoryQueue&) { return nullptr; };
  rank.executor->enqueue(batch(Executor::kUnderWayMax, list(std::move(waiting))));
  for (int i = 0; i < 5; ++i) rank.step();
  rank.executor->abandon();
  EXPECT_EQ(aborts, 1);
  EXPECT_EQ(rank.step(), Executor::Pace::Idle);
  EXPECT_TRUE(rank.finished.empty());
  rank.executor.reset();
  EXPECT_EQ(owned.use_count(), 2);
  EXPECT_EQ(in_line.use_count(), 2);
}

TEST_P(ExecutorContract, AJoinedRankTakesPartWithNeutralElements) {
  const auto meeting = std::make_shared<FakeMeeting>(2);
  Rank data_rank(GetParam(), 0, 2, meeting, {});
  Rank joined_rank(GetParam(), 1, 2, meeting, {.copy_polls = 3});
  std::vector<float> mine = {5, 6}, shape_only = {0, 0};
  data_rank.executor->enqueue(batch(0, list(entry(1, mine))));
  EntryWork joined = entry(0, shape_only);
  joined.mine = false;
  joined.memory.clear();
  joined_rank.executor->enqueue(batch(0, list(std::move(joined))));
  run_both(data_rank, joined_rank);
  EXPECT_THAT(mine, ElementsAre(5, 6));
  EXPECT_EQ(joined_rank.finished.size(), 1U);
  for (const EnqueuedBatch& each : joined_rank.enqueued) EXPECT_TRUE(each.entries.empty());
}

TEST_P(ExecutorContract, AllgatherAllocatesWhenTheSizeIsKnown) {
  Rank rank(GetParam(), 0, 1, std::make_shared<FakeMeeting>(1), {});
  std::vector<float> in = {1, 2, 3, 4}, out;
  EntryWork work = entry(1, in);
  auto spec = std::make_shared<EntrySpec>(*work.spec);
  spec->kind = CollectiveKind::Allgather;
  work.spec = spec;
  work.extents = {4};
  work.allocate_output = [&](size_t, int64_t elements, MemoryQueue& queue) {
    EXPECT_EQ(&queue, &rank.domain->queue()) << "its memory may be one that this queue gave back";
    out.resize(static_cast<size_t>(elements));
    return reinterpret_cast<std::byte*>(out.data());
  };
  rank.executor->enqueue(batch(0, list(std::move(work))));
  rank.run();
  EXPECT_THAT(out, ElementsAre(1, 2, 3, 4));
}

// Host memory that notes what it is asked for.
class RecordingDomain final : public MemoryDomain {
 public:
  struct Record {
    std::vector<size_t> copies;  // bytes read by each call of copy()
    std::vector<std::weak_ptr<std::byte>> scratch;
  };
  explicit RecordingDomain(Record& record) : record_(record) {}
  DeviceKind device() const override { return DeviceKind::Cuda; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    std::shared_ptr<std::byte> out(new std::byte[bytes], std::default_delete<std::byte[]>());
    record_.scratch.push_back(out);
    return out;
  }
  MemoryQueue& queue() override { return queue_; }

 private:
  class Queue final : public MemoryQueue {
   public:
    explicit Queue(Record& record) : record_(record) {}
    bool immediate() const override { return true; }
    bool wait_for(Event&) override { return false; }
    void copy(std::span<const CopyItem> items) override {
      size_t& bytes = record_.copies.emplace_back();
      for (const CopyItem& item : items) {
        bytes += item.bytes;
        if (item.from == nullptr) {
          fill({item.to, item.bytes}, item.pattern);
        } else {
          std::memcpy(item.to, item.from, item.bytes);
        }
      }
    }
    std::shared_ptr<Event> record() override { return nullptr; }

   private:
    Record& record_;
  };
  Record& record_;
  Queue queue_{record_};
};

std::unique_ptr<Executor> recorded(int rank, int size, const std::shared_ptr<FakeMeeting>& meeting,
                                   RecordingDomain::Record& record, FakeDelays delays = {}) {
  std::vector<std::unique_ptr<CollectiveOp>> ops;
  ops.push_back(std::make_unique<FakeOp>(rank, meeting, delays, DeviceKind::Cuda));
  Executor::Parts parts;
  parts.rank = rank;
  parts.size = size;
  parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  parts.scratch = test::scratch_of(std::make_unique<RecordingDomain>(record));
  return std::make_unique<Executor>(std::move(parts));
}

std::vector<float> count_up(size_t size, float first) {
  std::vector<float> out(size);
  std::iota(out.begin(), out.end(), first);
  return out;
}

// The loop serves others between two steps.
TEST(Executor, AStepCopiesABoundedPieceAndTheOrderStays) {
  RecordingDomain::Record record;
  const auto executor = recorded(0, 1, std::make_shared<FakeMeeting>(1), record);
  // A tensor that fits in a piece, an empty one, one of many pieces, and one after it.
  std::vector<float> a = count_up(1000, 0), none, b = count_up(1'500'000, 5), c = {1, 2, 3};
  const std::vector<float> a_before = a, b_before = b, c_before = c;
  executor->enqueue(batch(0, list(entry(1, a), entry(2, none), entry(3, b), entry(4, c))));
  std::vector<FinishedBatch> finished;
  std::vector<EnqueuedBatch> enqueued;
  size_t copies = 0;
  while (executor->step(finished, enqueued) != Executor::Pace::Idle) {
    EXPECT_LE(record.copies.size(), copies + 1) << "one piece for each step";
    copies = record.copies.size();
  }
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_GE(copies, 12U) << "6 MB, in and out";
  for (const size_t bytes : record.copies) EXPECT_LE(bytes, SlicedCopy::kBytesPerStep);
  EXPECT_EQ(a, a_before);
  EXPECT_EQ(b, b_before);
  EXPECT_EQ(c, c_before);
}

TEST(Executor, AJoinedRankMakesNeutralElementsInPieces) {
  const auto meeting = std::make_shared<FakeMeeting>(2);
  RecordingDomain::Record record, of_joined;
  const auto executor = recorded(0, 2, meeting, record);
  const auto joined = recorded(1, 2, meeting, of_joined);
  std::vector<float> data = count_up(1'000'003, 1), shape_only(data.size());
  const std::vector<float> before = data;
  executor->enqueue(batch(0, list(entry(1, data))));
  EntryWork nothing = entry(0, shape_only);
  nothing.mine = false;
  nothing.memory.clear();
  joined->enqueue(batch(0, list(std::move(nothing))));
  std::vector<FinishedBatch> finished;
  std::vector<EnqueuedBatch> enqueued;
  for (int i = 0; i < 50; ++i) {
    executor->step(finished, enqueued);
    joined->step(finished, enqueued);
  }
  ASSERT_EQ(finished.size(), 2U);
  EXPECT_EQ(data, before) << "zeros were added";
  for (const size_t bytes : of_joined.copies) EXPECT_LE(bytes, SlicedCopy::kBytesPerStep);
}

// A peer or MPI may still write there.
TEST(Executor, TheScratchOfAFailedBatchIsNeverReleased) {
  RecordingDomain::Record record;
  {
    const auto executor =
        recorded(0, 1, std::make_shared<FakeMeeting>(1), record, {.fail_op_at_sequence = 0});
    std::vector<float> a = {1}, b = {2}, c = {3}, d = {4};
    executor->enqueue(batch(0, list(entry(1, a), entry(2, b))));
    std::vector<FinishedBatch> finished;
    std::vector<EnqueuedBatch> enqueued;
    while (finished.empty()) executor->step(finished, enqueued);
    ASSERT_TRUE(finished[0].error);
    executor->enqueue(batch(1, list(entry(3, c), entry(4, d))));
    while (finished.size() < 2) executor->step(finished, enqueued);
  }
  ASSERT_EQ(record.scratch.size(), 2U) << "the second batch does not reuse it";
  EXPECT_FALSE(record.scratch[0].expired());
  EXPECT_TRUE(record.scratch[1].expired());
}

// A collective that fails; what it holds is noted.
class FailingOp final : public CollectiveOp {
 public:
  explicit FailingOp(std::weak_ptr<std::byte>& held) : held_(held) {}
  std::string_view name() const override { return "failing"; }
  std::string refusal(const BatchFacts&) const override { return ""; }
  std::unique_ptr<InFlight> start(Batch) override {
    auto flight = std::make_unique<Flight>();
    held_ = flight->buffer;
    return flight;
  }

 private:
  struct Flight final : InFlight {
    Progress step() override { throw Error(ErrorCode::OperationFailed, "the peer is gone"); }
    std::shared_ptr<std::byte> buffer = std::make_shared<std::byte>();
  };
  std::weak_ptr<std::byte>& held_;
};

// MPI may still write to a buffer of the op.
TEST(Executor, WhatAFailedCollectiveHoldsIsNeverReleased) {
  std::weak_ptr<std::byte> held;
  EXPECT_TRUE(error_of_one_batch(std::make_unique<FailingOp>(held)));
  EXPECT_FALSE(held.expired());
}

// An op that throws what is no horon::Error.
class ThrowingOp final : public CollectiveOp {
 public:
  std::string_view name() const override { return "throwing"; }
  std::string refusal(const BatchFacts&) const override { return ""; }
  std::unique_ptr<InFlight> start(Batch) override { throw std::bad_alloc(); }
};

TEST(Executor, AnyExceptionIsTheErrorOfItsBatch) {
  const std::optional<Error> error = error_of_one_batch(std::make_unique<ThrowingOp>());
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Limit);
}

TEST(Executor, NoOpForThisDeviceIsAnErrorThatSaysWhy) {
  const std::optional<Error> error = error_of_one_batch(std::make_unique<FakeOp>(
      0, std::make_shared<FakeMeeting>(1), FakeDelays{}, DeviceKind::Host));
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("wrong device"));
}

INSTANTIATE_TEST_SUITE_P(Memory, ExecutorContract, every_memory, memory_name);

}  // namespace
}  // namespace horon::core
