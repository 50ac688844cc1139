// Batches on memory with a queue: what is enqueued, what waits, and what the host never waits for.
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/execution/executor_rank.h"

namespace horon::core {
namespace {

using namespace executor_world;
using test::FakeEvent;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(QueuedBatches, AllIsEnqueuedInOneGoBeforeAnythingIsReady) {
  Rank rank(FakeMemory::Enqueued, 0, 1, std::make_shared<FakeMeeting>(1), {});
  FakeQueue program(*rank.device);
  std::vector<float> a = {0}, b = {0};
  program.run([&] { a[0] = 1; });
  EntryWork first = entry(1, a), second = entry(2, b);
  first.ready = program.record_ready();
  program.run([&] { b[0] = 2; });
  second.ready = program.record_ready();
  rank.executor->enqueue(batch(0, list(std::move(first), std::move(second))));
  EXPECT_EQ(rank.step_executor(), Executor::Pace::Busy);
  ASSERT_EQ(rank.enqueued.size(), 1U) << "one step enqueues all";
  ASSERT_EQ(rank.enqueued[0].entries.size(), 2U);
  EXPECT_EQ(rank.enqueued[0].entries[1].ticket, 2U);
  EXPECT_FALSE(rank.enqueued[0].done->happened());
  EXPECT_TRUE(rank.finished.empty());
  EXPECT_THAT(a, ElementsAre(0)) << "the program has not even written it";
  rank.run();
  ASSERT_EQ(rank.finished.size(), 1U);
  EXPECT_TRUE(rank.enqueued[0].done->happened());
  EXPECT_THAT(a, ElementsAre(1));
  EXPECT_THAT(b, ElementsAre(2));
  EXPECT_EQ(rank.device->host_waits(), 0);
}

// Steps of a training: the program writes two tensors, they are reduced, it adds the results up.
class Training {
 public:
  Training(int rank, std::shared_ptr<FakeMeeting> meeting, bool loses_waits)
      : rank_(rank),
        executor(FakeMemory::Enqueued, rank, 2, std::move(meeting), {}, options(rank, loses_waits)),
        program_(*executor.device) {}

  // Enqueues a step. The program does not wait for the one before.
  void begin(int step) {
    const size_t i = static_cast<size_t>(step) % 2;  // two pairs of tensors, in turns
    std::vector<float>&small = small_[i], &large = large_[i];
    // A pair is written again when its last results have been read: the order of the program.
    program_.run([&small, &large, this, step] {
      small.assign(3, static_cast<float>(step + rank_));
      large.assign(100, 1);
    });
    std::vector<EntryWork> work = list(entry(1, small), entry(2, large));
    for (EntryWork& each : work) each.ready = program_.record_ready();
    executor.executor->enqueue(batch(static_cast<uint64_t>(step), std::move(work)));
    while (executor.enqueued.size() <= static_cast<size_t>(step)) executor.step_executor();
    (void)program_.wait_for(*executor.enqueued.back().done);
    program_.run([&small, &large, this] { sum_ += small[2] + large[99]; });
  }
  float sum() const { return sum_; }

  static constexpr int kSteps = 20;
  static float expected() {
    float sum = 0;
    for (int step = 0; step < kSteps; ++step) sum += 2.0F * static_cast<float>(step) + 1 + 2;
    return sum;
  }

 private:
  static FakeDevice::Options options(int rank, bool loses_waits) {
    FakeDevice::Options options;
    options.delay_max = 3 + rank;
    options.seed = 7 + static_cast<uint32_t>(rank);
    options.loses_waits = loses_waits;
    options.by_hand = true;
    return options;
  }

  const int rank_;

 public:
  Rank executor;

 private:
  FakeQueue program_;
  std::vector<float> small_[2] = {std::vector<float>(3), std::vector<float>(3)};
  std::vector<float> large_[2] = {std::vector<float>(100), std::vector<float>(100)};
  float sum_ = 0;
};

// Enqueues all steps on both ranks before the devices do anything.
void train(Training& zero, Training& one) {
  for (int step = 0; step < Training::kSteps; ++step) {
    zero.begin(step);
    one.begin(step);
  }
  EXPECT_EQ(zero.sum(), 0);
  for (int i = 0; i < 100'000; ++i) {
    const bool zero_goes_on = zero.executor.device->turn();
    if (!one.executor.device->turn() && !zero_goes_on) break;
  }
}

TEST(QueuedBatches, AWholeTrainingWaitsNeverOnTheHost) {
  const auto meeting = std::make_shared<FakeMeeting>(2);
  Training zero(0, meeting, false), one(1, meeting, false);
  train(zero, one);
  EXPECT_EQ(zero.sum(), Training::expected());
  EXPECT_EQ(one.sum(), Training::expected());
  EXPECT_EQ(zero.executor.device->host_waits() + one.executor.device->host_waits(), 0);
  run_both(zero.executor, one.executor);
  EXPECT_EQ(zero.executor.finished.size(), static_cast<size_t>(Training::kSteps));
  // All of them went through one fusion buffer, each after the one before.
  EXPECT_EQ(zero.executor.domain->allocations(), 1);
}

// Shows that the test above notices what it tests.
TEST(QueuedBatches, ADeviceThatForgetsToWaitGivesOtherResults) {
  const auto meeting = std::make_shared<FakeMeeting>(2);
  Training zero(0, meeting, true), one(1, meeting, true);
  train(zero, one);
  EXPECT_NE(zero.sum(), Training::expected());
}

// Another process set of the same ranks, with a log and a queue of its own on the same device.
std::unique_ptr<Executor> other_set(Rank& rank, int member, std::shared_ptr<FakeMeeting> meeting) {
  std::vector<std::unique_ptr<CollectiveOp>> ops;
  ops.push_back(std::make_unique<test::FakeOp>(member, std::move(meeting), FakeDelays{},
                                               DeviceKind::Cuda, FakeMemory::Enqueued));
  Executor::Parts parts;
  parts.rank = member;
  parts.size = 2;
  parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  parts.scratch =
      test::scratch_of(std::make_unique<test::FakeDomain>(DeviceKind::Cuda, rank.device));
  return std::make_unique<Executor>(std::move(parts));
}

// Sets have no common order, so a collective that waits for its peers holds up its own queue alone.
TEST(QueuedBatches, SetsThatStartInUnlikeOrderDoNotWaitForEachOther) {
  const auto meeting = std::make_shared<FakeMeeting>(2), other = std::make_shared<FakeMeeting>(2);
  Rank zero(FakeMemory::Enqueued, 0, 2, meeting, {}), one(FakeMemory::Enqueued, 1, 2, meeting, {});
  const auto zero_other = other_set(zero, 0, other), one_other = other_set(one, 1, other);
  std::vector<float> a = {1}, b = {2}, c = {3}, d = {4};
  std::vector<FinishedBatch> finished;
  std::vector<EnqueuedBatch> enqueued;
  zero.executor->enqueue(batch(0, list(entry(1, a))));
  zero.step();  // its kernel waits for rank 1
  one_other->enqueue(batch(0, list(entry(2, d))));
  one_other->step(finished, enqueued);
  one.turn_device();  // its kernel waits for rank 0
  EXPECT_FALSE(meeting->complete(0) || other->complete(0));
  zero_other->enqueue(batch(0, list(entry(2, c))));
  one.executor->enqueue(batch(0, list(entry(1, b))));
  for (int i = 0; i < 100 && finished.size() < 2; ++i) {
    zero_other->step(finished, enqueued);
    one_other->step(finished, enqueued);
    zero.step();
    one.step();
  }
  EXPECT_EQ(finished.size(), 2U);
  run_both(zero, one);
  EXPECT_THAT(a, ElementsAre(3));
  EXPECT_THAT(d, ElementsAre(7));
}

// Compression: the device casts when it packs and unpacks, and no thread waits for it.
TEST_P(ExecutorContract, TheDeviceCastsWhatIsCompressed) {
  for (const Compression type : {Compression::Float16, Compression::BFloat16}) {
    const auto meeting = std::make_shared<FakeMeeting>(2);
    Rank zero(GetParam(), 0, 2, meeting, {.copy_polls = 2});
    Rank one(GetParam(), 1, 2, meeting, {.copy_polls = 1});
    // 1 + 2^-5 is exact in both types, 1 + 2^-12 in neither.
    std::vector<float> a = {1.03125F, -2}, b = {1.000244140625F, 3}, c = {4};
    const auto compressed = [&](std::vector<float>& data) {
      EntryWork work = entry(1, data);
      auto spec = std::make_shared<EntrySpec>(*work.spec);
      spec->compression = type;
      spec->prescale = 2;
      spec->postscale = 0.25;
      work.spec = spec;
      return work;
    };
    zero.executor->enqueue(batch(0, list(compressed(a), compressed(c))));
    std::vector<float> d = {8};
    one.executor->enqueue(batch(0, list(compressed(b), compressed(d))));
    run_both(zero, one);
    EXPECT_THAT(a, ElementsAre(1.015625F, 0.5F));
    EXPECT_EQ(a, b);
    EXPECT_THAT(c, ElementsAre(6));
    EXPECT_EQ(zero.device->host_waits(), 0);
  }
}

TEST(QueuedBatches, TheMemoryIsInUseUntilTheDeviceHasDoneTheWork) {
  const auto meeting = std::make_shared<FakeMeeting>(2);
  Rank zero(FakeMemory::Enqueued, 0, 2, meeting, {}), one(FakeMemory::Enqueued, 1, 2, meeting, {});
  std::vector<float> a = {1}, b = {2};
  zero.executor->enqueue(batch(0, list(entry(1, a))));
  for (int i = 0; i < 20; ++i) EXPECT_NE(zero.step(), Executor::Pace::Idle);
  EXPECT_EQ(zero.enqueued.size(), 1U);
  EXPECT_TRUE(zero.finished.empty()) << "rank 1 has not come";
  one.executor->enqueue(batch(0, list(entry(1, b))));
  run_both(zero, one);
  EXPECT_EQ(zero.enqueued.size(), 1U) << "told once";
  EXPECT_EQ(zero.finished.size(), 1U);
  EXPECT_THAT(a, ElementsAre(3));
}

// On rank 0 the first op is enqueued some calls after its start. The second batch must not stand in
// the queue before it, neither its op nor the wait for its tensor, which comes from the result of
// the first: on a queue each kernel waits for its peers.
TEST(QueuedBatches, AnOpThatTakesSeveralCallsToEnqueueKeepsItsPlace) {
  const auto meeting = std::make_shared<FakeMeeting>(2);
  Rank zero(FakeMemory::Enqueued, 0, 2, meeting, {.op_polls = 3, .only_polls_at_sequence = 0});
  Rank one(FakeMemory::Enqueued, 1, 2, meeting, {});
  std::vector<float> first[2] = {{1}, {2}}, second[2] = {{0}, {0}};
  FakeQueue programs[2] = {FakeQueue(*zero.device), FakeQueue(*one.device)};
  for (size_t rank = 0; rank < 2; ++rank) {
    float &reduced = first[rank][0], &next = second[rank][0];
    programs[rank].enqueue({[&reduced] { return reduced == 3; }, [&] { next = reduced; }});
    EntryWork later = entry(2, second[rank]);
    later.ready = programs[rank].record_ready();
    Rank& on = rank == 0 ? zero : one;
    on.executor->enqueue(batch(0, list(entry(1, first[rank]))));
    on.executor->enqueue(batch(1, list(std::move(later))));
  }
  run_both(zero, one);
  EXPECT_THAT(first[0], ElementsAre(3));
  EXPECT_THAT(second[0], ElementsAre(6));
  EXPECT_THAT(second[1], ElementsAre(6));
  EXPECT_THAT(meeting->started(0), ElementsAre(0, 1));
}

TEST_P(ExecutorContract, NothingOfAFinishedBatchIsKept) {
  Rank rank(GetParam(), 0, 1, std::make_shared<FakeMeeting>(1), {});
  std::vector<float> a = {1}, b = {2};
  std::vector<EntryWork> work = list(entry(1, a), entry(2, b));
  const std::weak_ptr<const EntrySpec> spec = work.front().spec;
  rank.executor->enqueue(batch(0, std::move(work)));
  rank.run();
  rank.finished.clear();
  EXPECT_TRUE(spec.expired());
}

TEST(QueuedBatches, AnOpThatFailsBehindItsHandleFailsTheBatch) {
  Rank rank(FakeMemory::Enqueued, 0, 1, std::make_shared<FakeMeeting>(1),
            {.fail_op_at_sequence = 0});
  std::vector<float> a = {1}, b = {2};
  rank.executor->enqueue(batch(0, list(entry(1, a), entry(2, b))));
  while (rank.finished.empty()) rank.step();
  EXPECT_THAT(rank.finished[0].error->what(), HasSubstr("fake network is down"));
  EXPECT_TRUE(rank.enqueued.empty()) << "its handle would tell of a result first";
}

TEST(QueuedBatches, ADeviceThatFailsFailsTheBatch) {
  for (int at = 0; at < 6; ++at) {
    for (const FakeMemory memory : {FakeMemory::HostDriven, FakeMemory::Enqueued}) {
      FakeDevice::Options options;
      options.fails_at = at;
      options.by_hand = true;
      Rank rank(memory, 0, 1, std::make_shared<FakeMeeting>(1), {}, options);
      FakeQueue program(*rank.device);
      std::vector<float> a = {1}, b = {2};
      EntryWork late = entry(1, a);
      late.ready = program.record_ready();
      rank.executor->enqueue(batch(0, list(std::move(late), entry(2, b))));
      for (int i = 0; i < 100 && rank.finished.empty(); ++i) rank.step();
      ASSERT_EQ(rank.finished.size(), 1U) << at;
      // The copy in, the event after it, the copy out and the event after it at least.
      ASSERT_TRUE(rank.finished[0].error || at > 4) << at;
    }
  }
}

// Batches that keep an order keep it on every rank; others do not wait.
TEST(QueuedBatches, AnUnreadyBatchHoldsBackOnlyThoseThatKeepItsOrder) {
  for (const FakeMemory memory : {FakeMemory::Immediate, FakeMemory::HostDriven}) {
    for (const StartOrder order : {StartOrder::Log, StartOrder::Op, StartOrder::Any}) {
      const auto meeting = std::make_shared<FakeMeeting>(1);
      Rank rank(memory, 0, 1, meeting, {.copy_polls = 2, .order = order});
      std::vector<float> a = {1}, b = {2}, c = {3};
      EntryWork late = entry(1, a);
      late.ready = std::make_unique<FakeEvent>(100);
      rank.executor->enqueue(batch(0, list(std::move(late))));
      rank.executor->enqueue(batch(1, list(entry(2, b), entry(3, c))));  // is packed
      rank.run();
      ASSERT_EQ(rank.finished.size(), 2U);
      if (order == StartOrder::Any) {
        EXPECT_THAT(meeting->started(0), ElementsAre(1, 0));
      } else {
        EXPECT_THAT(meeting->started(0), ElementsAre(0, 1));
      }
    }
  }
}

// An op that keeps an order of its own, beside one that keeps that of the log.
TEST(Predecessors, EachOrderIsItsOwn) {
  const auto op = [](StartOrder order) {
    return test::FakeOp(0, nullptr, {.order = order}, DeviceKind::Host);
  };
  const auto mpi = op(StartOrder::Log), also_mpi = op(StartOrder::Log), any = op(StartOrder::Any);
  const auto shm = op(StartOrder::Op), other_shm = op(StartOrder::Op);
  Predecessors earlier;
  FakeDomain host(DeviceKind::Host), other(DeviceKind::Cuda);
  earlier.add(nullptr, false, &any);
  EXPECT_TRUE(earlier.may_start(mpi) && earlier.may_start(shm) && earlier.may_start(any));
  earlier.add(nullptr, false, &shm);
  EXPECT_TRUE(earlier.may_start(mpi) && earlier.may_start(other_shm) && earlier.may_start(any));
  EXPECT_FALSE(earlier.may_start(shm));
  earlier.add(nullptr, false, &mpi);
  EXPECT_FALSE(earlier.may_start(also_mpi));
  EXPECT_TRUE(earlier.may_take_scratch(host));
  EXPECT_TRUE(earlier.is_oldest_in(host));
  earlier.add(&host, true, nullptr);
  EXPECT_FALSE(earlier.may_take_scratch(host) || earlier.is_oldest_in(host));
  EXPECT_TRUE(earlier.may_take_scratch(other) && earlier.is_oldest_in(other))
      << "it has a limit of its own";
  earlier.clear();
  EXPECT_TRUE(earlier.may_start(shm) && earlier.may_start(mpi) && earlier.may_take_scratch(host));
  // Nothing of a pass is left in the next ones.
  earlier.add(&host, true, &any);
  EXPECT_TRUE(earlier.may_start(shm) && earlier.may_start(mpi));
  earlier.clear();
  earlier.add(&host, true, nullptr);
  earlier.clear();
  EXPECT_TRUE(earlier.may_take_scratch(host) && earlier.is_oldest_in(host));
}

// Many batches that are packed, of which the first is not ready for long.
void run_with_little_scratch(FakeMemory memory, StartOrder order, size_t bytes_max,
                             int allocations_max) {
  const auto meeting = std::make_shared<FakeMeeting>(2);
  const FakeDelays delays{.op_polls = 2, .copy_polls = 1, .order = order};
  Rank zero(memory, 0, 2, meeting, delays, bytes_max);
  Rank one(memory, 1, 2, meeting, delays, bytes_max);
  constexpr size_t batches = 12, elements = 20'000;  // 80,000 bytes and 4 for each
  std::vector<std::vector<float>> mine(batches, std::vector<float>(elements, 1)), theirs = mine;
  std::vector<std::vector<float>> ends(2 * batches, std::vector<float>(1, 2));
  for (size_t i = 0; i < batches; ++i) {
    std::vector<EntryWork> work = list(entry(1, mine[i]), entry(2, ends[i]));
    if (i % 5 == 0) work[0].ready = std::make_unique<FakeEvent>(40);
    zero.executor->enqueue(batch(i, std::move(work)));
    work = list(entry(1, theirs[i]), entry(2, ends[batches + i]));
    if (i % 5 == 1) work[1].ready = std::make_unique<FakeEvent>(60);
    one.executor->enqueue(batch(i, std::move(work)));
  }
  run_both(zero, one);
  ASSERT_EQ(zero.finished.size(), batches);
  ASSERT_EQ(one.finished.size(), batches);
  for (size_t i = 0; i < batches; ++i) {
    EXPECT_EQ(mine[i], std::vector<float>(elements, 2));
    EXPECT_EQ(theirs[i], mine[i]);
  }
  for (const Rank* rank : {&zero, &one}) {
    EXPECT_LE(rank->domain->allocations(), allocations_max);
    EXPECT_GE(rank->domain->allocations(), 1);
  }
}

TEST_P(ExecutorContract, ScratchIsLimitedAndNothingWaitsForEver) {
  for (const StartOrder order : {StartOrder::Log, StartOrder::Op, StartOrder::Any}) {
    run_with_little_scratch(GetParam(), order, 170'000, 2);
    run_with_little_scratch(GetParam(), order, 80'004, 1);
    run_with_little_scratch(GetParam(), order, 0, 1);  // one batch may always run
  }
}

// A device that is being opened gets no work, and later batches that keep the order of the log wait
// too.
TEST(QueuedBatches, ADeviceThatIsBeingOpenedIsWaitedFor) {
  for (const FakeMemory memory : {FakeMemory::HostDriven, FakeMemory::Enqueued}) {
    const auto meeting = std::make_shared<FakeMeeting>(1);
    Rank rank(memory, 0, 1, meeting, {});
    rank.domain->open_in(7);  // the two batches ask in turn
    std::vector<float> a = {1}, b = {2}, c = {3};
    rank.executor->enqueue(batch(0, list(entry(1, a), entry(2, b))));  // is packed
    rank.executor->enqueue(batch(1, list(entry(3, c))));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(rank.step(), Executor::Pace::Polling);
      EXPECT_EQ(rank.domain->allocations(), 0);
      EXPECT_TRUE(meeting->started(0).empty());
    }
    rank.run();
    EXPECT_EQ(rank.finished.size(), 2U);
    EXPECT_THAT(meeting->started(0), ElementsAre(0, 1));
  }
}

}  // namespace
}  // namespace horon::core
