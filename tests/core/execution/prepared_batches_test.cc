// Batches that repeat, and how far one step goes.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/execution/executor_rank.h"

namespace horon::core {
namespace {

using namespace executor_world;
using testing::ElementsAre;

// A batch that waits for nothing takes one step, and at most two more if it is packed.
TEST(Executor, StagesFallThroughWhileNothingHoldsThemUp) {
  Rank rank(FakeMemory::Immediate, 0, 1, std::make_shared<FakeMeeting>(1), {});
  std::vector<float> a = {1}, b = {2};
  rank.executor->enqueue(batch(0, list(entry(1, a))));
  rank.step();
  EXPECT_EQ(rank.finished.size(), 1U);
  rank.executor->enqueue(batch(1, list(entry(2, a), entry(3, b))));
  for (int step = 0; step < 3; ++step) rank.step();  // two copies: in, out
  EXPECT_EQ(rank.finished.size(), 2U);
}

// The same spec with fewer contributors makes another batch: Average divides by another number.
TEST_P(ExecutorContract, ABatchThatComesAgainIsPreparedOnce) {
  for (const int size : {1, 3}) {
    const auto spec = std::make_shared<EntrySpec>();
    spec->reduce_op = ReduceOp::Average;
    spec->device = DeviceKind::Cuda;
    spec->parts = {{"x", {2}}};
    const auto meeting = std::make_shared<FakeMeeting>(1);
    Rank rank(GetParam(), 0, 1, meeting, {});
    for (int round = 0; round < 4; ++round) {
      std::vector<float> data = {6, 12};
      EntryWork again = entry(1, data);
      again.spec = spec;
      BatchWork work = batch(static_cast<uint64_t>(round), list(std::move(again)));
      work.contributors = round == 2 ? size : 1;
      rank.executor->enqueue(std::move(work));
      rank.run();
      EXPECT_FALSE(rank.finished.back().error);
      const float divisor = round == 2 ? static_cast<float>(size) : 1;
      EXPECT_THAT(data, ElementsAre(6 / divisor, 12 / divisor));
    }
  }
}

// The rows of the other rank change, and come back.
TEST_P(ExecutorContract, RowsThatChangeAreLaidOutAnew) {
  const auto meeting = std::make_shared<FakeMeeting>(2);
  Rank zero(GetParam(), 0, 2, meeting, {});
  Rank one(GetParam(), 1, 2, meeting, {});
  std::shared_ptr<EntrySpec> specs[2];
  for (auto& spec : specs) {
    spec = std::make_shared<EntrySpec>();
    spec->kind = CollectiveKind::Allgather;
    spec->device = DeviceKind::Cuda;
    spec->parts = {{"x", {1}}};
  }
  uint64_t sequence = 0;
  for (const int64_t rows : {2, 2, 3, 3, 2, 0, 2}) {
    std::vector<float> mine = {7};
    std::vector<float> others(static_cast<size_t>(rows), 8);
    std::vector<float> gathered[2];
    const auto gather = [&](int rank, std::vector<float>& data) {
      specs[rank]->parts.front().shape = {std::ssize(data)};
      EntryWork work = entry(1, data);
      work.spec = specs[rank];
      work.memory.front().output = nullptr;
      work.extents = {1, rows};
      work.allocate_output = [&, rank](size_t, int64_t elements, MemoryQueue&) {
        gathered[rank].resize(static_cast<size_t>(elements));
        return reinterpret_cast<std::byte*>(gathered[rank].data());
      };
      (rank == 0 ? zero : one).executor->enqueue(batch(sequence, list(std::move(work))));
    };
    gather(0, mine);
    gather(1, others);
    ++sequence;
    executor_world::run_both(zero, one);
    std::vector<float> expected(static_cast<size_t>(rows), 8);
    expected.insert(expected.begin(), 7);
    for (const auto& each : gathered) EXPECT_EQ(each, expected);
    for (const Rank* rank : {&zero, &one}) {
      EXPECT_FALSE(rank->finished.back().error);
      const std::vector<int64_t>& received = rank->enqueued.empty()
                                                 ? rank->finished.back().entries.front().received
                                                 : rank->enqueued.back().entries.front().received;
      EXPECT_THAT(received, ElementsAre(1, rows));
    }
  }
}

TEST(Executor, ABarrierDoesNotWaitForADevice) {
  Rank rank(FakeMemory::Enqueued, 0, 1, std::make_shared<FakeMeeting>(1), {});
  rank.domain->open_in(1000);
  std::vector<float> nothing;
  EntryWork work = entry(1, nothing);
  auto spec = std::make_shared<EntrySpec>(*work.spec);
  spec->kind = CollectiveKind::Barrier;
  work.spec = spec;
  rank.executor->enqueue(batch(0, list(std::move(work))));
  for (int i = 0; i < 5; ++i) rank.step();
  EXPECT_EQ(rank.finished.size(), 1U);
}

// A program that makes a new spec for each call never asks for what is kept.
TEST(PreparedBatches, AreKeptInALimitedNumber) {
  PreparedBatches prepared;
  std::vector<std::weak_ptr<const EntrySpec>> specs;
  for (int i = 0; i < 5000; ++i) {
    PreparedBatch each;
    each.spec = std::make_shared<const EntrySpec>();
    specs.emplace_back(each.spec);
    prepared.add(std::move(each));
  }
  const auto is_kept = [](const auto& spec) { return !spec.expired(); };
  EXPECT_LE(std::count_if(specs.begin(), specs.end(), is_kept), 1024);
  EXPECT_NE(prepared.find(specs.back().lock().get(), 0, {}), nullptr);
}

// An op that enqueues, once its tensors are ready.
class ReadyOp final : public CollectiveOp {
 public:
  explicit ReadyOp(std::unique_ptr<CollectiveOp> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  std::string refusal(const BatchFacts& facts) const override { return inner_->refusal(facts); }
  bool enqueues() const override { return true; }
  bool wants_ready_tensors() const override { return true; }
  std::unique_ptr<InFlight> start(Batch batch) override { return inner_->start(std::move(batch)); }

 private:
  const std::unique_ptr<CollectiveOp> inner_;
};

TEST(Executor, AnOpThatWantsReadyTensorsStartsWhenTheyAre) {
  const auto device = std::make_shared<FakeDevice>(FakeDevice::Options{.by_hand = true});
  std::vector<std::unique_ptr<CollectiveOp>> ops;
  ops.push_back(std::make_unique<ReadyOp>(std::make_unique<FakeOp>(
      0, std::make_shared<FakeMeeting>(1), FakeDelays{}, DeviceKind::Cuda, FakeMemory::Enqueued)));
  Executor::Parts parts;
  parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  parts.scratch = test::scratch_of(std::make_unique<FakeDomain>(DeviceKind::Cuda, device));
  Executor executor(std::move(parts));
  FakeQueue program(*device);
  std::vector<float> data = {0};
  program.run([&] { data[0] = 1; });
  EntryWork late = entry(1, data);
  late.ready = program.record_ready();
  executor.enqueue(batch(0, list(std::move(late))));
  std::vector<FinishedBatch> finished;
  std::vector<EnqueuedBatch> enqueued;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(executor.step(finished, enqueued), Executor::Pace::Polling);
  EXPECT_TRUE(enqueued.empty());
  while (device->turn()) continue;
  (void)executor.step(finished, enqueued);
  EXPECT_EQ(enqueued.size(), 1U);
}

// The later batches wait, and all end in the order of the log.
TEST(Executor, ALimitedNumberOfBatchesIsUnderWay) {
  constexpr size_t kBatches = 3 * Executor::kUnderWayMax;
  FakeDevice::Options by_hand;
  by_hand.by_hand = true;
  Rank rank(FakeMemory::Enqueued, 0, 1, std::make_shared<FakeMeeting>(1), {}, by_hand);
  std::vector<std::vector<float>> data(kBatches, std::vector<float>{1});
  for (size_t i = 0; i < kBatches; ++i) {
    rank.executor->enqueue(batch(i, list(entry(i, data[i]))));
  }
  for (int step = 0; step < 1000; ++step) (void)rank.step_executor();
  EXPECT_EQ(rank.enqueued.size(), Executor::kUnderWayMax);  // the device has done nothing yet
  EXPECT_TRUE(rank.finished.empty());
  rank.run();
  ASSERT_EQ(rank.finished.size(), kBatches);
  for (size_t i = 0; i < kBatches; ++i) EXPECT_EQ(rank.finished[i].sequence, i);
}

}  // namespace
}  // namespace horon::core
