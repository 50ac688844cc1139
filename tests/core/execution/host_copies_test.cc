// Batches of the host in which some tensors are on a device.
#include "horon/core/execution/host_copies.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/finished_flight.h"
#include "horon/tests/core/execution/executor_rank.h"
#include "horon/tests/core/execution/staged_rank.h"

namespace horon::core::host_copies_test {
namespace {

using executor_world::batch;
using executor_world::list;
using staged_world::ElsewhereDomain;
using staged_world::OpScript;
using staged_world::TwoRanksOp;
using test::FakeDevice;
using test::FakeDomain;
using test::FakeQueue;
using testing::Each;

// One of two ranks with the same tensors: the results are twice the inputs.
struct MixedRank {
  // `op`: null means a TwoRanksOp.
  explicit MixedRank(FakeDevice::Options options = {}, size_t bytes_max = ScratchPool::kNoLimit,
                     std::unique_ptr<CollectiveOp> op = nullptr) {
    options.by_hand = true;
    device = std::make_unique<FakeDevice>(options);
    producer = std::make_unique<FakeQueue>(*device);
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    if (op == nullptr) op = std::make_unique<TwoRanksOp>(script);
    ops.push_back(std::move(op));
    std::vector<std::unique_ptr<MemoryDomain>> domains;
    domains.push_back(std::make_unique<FakeDomain>(DeviceKind::Host));
    auto elsewhere = std::make_unique<ElsewhereDomain>(*device);
    domain = elsewhere.get();
    domains.push_back(std::move(elsewhere));
    Executor::Parts parts;
    parts.size = 2;
    parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
    parts.scratch = scratch = std::make_shared<ScratchPool>(std::move(domains), bytes_max);
    executor = std::make_unique<Executor>(std::move(parts));
  }

  Executor::Pace step() {
    (void)device->turn();
    const Executor::Pace pace = executor->step(finished, enqueued);
    EXPECT_NE(pace, Executor::Pace::Ringing) << "nothing here rings";
    return pace;
  }
  void run() {
    for (int i = 0; i < 10'000; ++i) {
      if (step() == Executor::Pace::Idle) return;
    }
    FAIL() << "the executor does not come to rest";
  }

  const std::shared_ptr<OpScript> script = std::make_shared<OpScript>();
  std::unique_ptr<FakeDevice> device;
  std::unique_ptr<FakeQueue> producer;  // of the program
  std::shared_ptr<ScratchPool> scratch;
  ElsewhereDomain* domain = nullptr;
  std::unique_ptr<Executor> executor;
  std::vector<FinishedBatch> finished;
  std::vector<EnqueuedBatch> enqueued;
};

std::byte* bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

EntryWork entry(uint64_t ticket, std::vector<float>& input, std::vector<float>& output,
                CollectiveKind kind = CollectiveKind::Allreduce) {
  auto spec = std::make_shared<EntrySpec>();
  spec->kind = kind;
  const auto count = static_cast<int64_t>(input.size());
  spec->parts = {{"t", {count}}};
  EntryWork work;
  work.ticket = ticket;
  work.name = "t";
  work.spec = spec;
  work.memory = {{bytes(input), bytes(output), count}};
  return work;
}

EntryWork on_device(EntryWork work) {
  work.copied_to_host = true;
  return work;
}

TEST(HostCopies, TheOpWorksInThemAndTheTensorGetsTheResult) {
  for (uint32_t seed = 1; seed < 20; ++seed) {
    FakeDevice::Options options;
    options.delay_max = seed % 2 == 0 ? 3 : 30;
    options.seed = seed;
    MixedRank rank(options);
    std::vector<float> in_place(300, 5), input(70, 3), output(70, -1);
    rank.executor->enqueue(batch(0, list(on_device(entry(1, in_place, in_place)))));
    rank.executor->enqueue(batch(1, list(on_device(entry(2, input, output)))));
    rank.run();
    ASSERT_EQ(rank.finished.size(), 2U);
    for (const FinishedBatch& each : rank.finished) {
      EXPECT_FALSE(each.error);
      EXPECT_TRUE(each.was_enqueued) << "the program's stream waits for the copy back";
    }
    EXPECT_THAT(in_place, Each(10));
    EXPECT_THAT(input, Each(3));
    EXPECT_THAT(output, Each(6));
    for (const Batch& started : rank.script->started) {
      EXPECT_NE(started.input, bytes(in_place));
      EXPECT_NE(started.input, bytes(input));
    }
  }
}

TEST(HostCopies, ABatchMayHaveTensorsOfBothKinds) {
  MixedRank rank;
  std::vector<float> there(300, 5), here(40, 7), empty, last(3, 1);
  rank.executor->enqueue(
      batch(0, list(on_device(entry(1, there, there)), entry(2, here, here),
                    on_device(entry(3, empty, empty)), on_device(entry(4, last, last)))));
  rank.run();
  ASSERT_EQ(rank.script->started.size(), 1U);
  EXPECT_THAT(there, Each(10));
  EXPECT_THAT(here, Each(14));
  EXPECT_THAT(last, Each(2));
}

TEST(HostCopies, AreMadeWhenTheTensorIsReady) {
  FakeDevice::Options options;
  options.delay_max = 20;
  MixedRank rank(options);
  std::vector<float> late(300, 0);
  rank.producer->run([&] { late.assign(300, 4); });
  EntryWork work = on_device(entry(1, late, late));
  work.ready = rank.producer->record_ready();
  rank.executor->enqueue(batch(0, list(std::move(work))));
  rank.run();
  EXPECT_THAT(late, Each(8));
}

TEST(HostCopies, ARankThatReceivesBringsNothing) {
  MixedRank rank;
  std::vector<float> received(5, -1);
  EntryWork work = on_device(entry(1, received, received, CollectiveKind::Broadcast));
  auto spec = std::make_shared<EntrySpec>(*work.spec);
  spec->root = 1;
  work.spec = spec;
  rank.executor->enqueue(batch(0, list(std::move(work))));
  rank.run();
  EXPECT_THAT(received, testing::ElementsAre(1, 2, 3, 4, 5));
}

// The other rank has the same elements.
class GatherOp final : public CollectiveOp {
 public:
  std::string_view name() const override { return "gather"; }
  std::string refusal(const BatchFacts&) const override { return ""; }
  std::unique_ptr<InFlight> start(Batch batch) override {
    const size_t length = static_cast<size_t>(batch.count) * sizeof(float);
    std::memcpy(batch.output, batch.input, length);
    std::memcpy(batch.output + length, batch.input, length);
    return std::make_unique<FinishedFlight>();
  }
};

// Its copy goes to the scratch all the same, since the other rank needs the elements.
TEST(HostCopies, AResultGetsMemoryWhenItsSizeIsKnown) {
  for (const bool refused : {false, true}) {
    MixedRank rank({}, ScratchPool::kNoLimit, std::make_unique<GatherOp>());
    std::vector<float> mine(300, 5), result;
    const auto owned = std::make_shared<int>();
    EntryWork work = on_device(entry(1, mine, mine, CollectiveKind::Allgather));
    work.memory.front().output = nullptr;
    work.extents = {300, 300};
    work.allocate_output = [&, owned](size_t, int64_t elements, MemoryQueue& queue) {
      EXPECT_EQ(&queue, &rank.domain->queue_back()) << "which writes to it";
      if (!refused) result.resize(static_cast<size_t>(elements));
      return refused ? nullptr : bytes(result);
    };
    rank.executor->enqueue(batch(0, list(std::move(work))));
    rank.run();
    ASSERT_EQ(rank.finished.size(), 1U);
    EXPECT_FALSE(rank.finished[0].error);
    EXPECT_EQ(rank.enqueued.at(0).entries.at(0).error.has_value(), refused);
    EXPECT_EQ(result.size(), refused ? 0U : 600U);
    EXPECT_THAT(result, Each(5));
    EXPECT_EQ(owned.use_count(), 2) << "only threads of the program destroy what it owns";
  }
}

TEST(HostCopies, TheirMemoryIsUsedAgain) {
  MixedRank rank;
  std::vector<float> data(300, 1);
  for (uint64_t i = 0; i < 5; ++i) {
    rank.executor->enqueue(batch(i, list(on_device(entry(i, data, data)))));
    rank.run();
  }
  EXPECT_THAT(data, Each(32));
  EXPECT_EQ(rank.scratch->usage().bytes, size_t{64} << 10) << "one buffer of the shortest length";
}

// Later batches of the host do not overtake the one that waits for it, where all ranks keep the
// order of the log.
TEST(HostCopies, ADeviceMayTakeLongToOpen) {
  MixedRank rank;
  rank.domain->opens_in = 200;
  std::vector<float> there(300, 5), here(40, 7), more(30, 2);
  rank.executor->enqueue(batch(0, list(on_device(entry(1, there, there)))));
  rank.executor->enqueue(batch(1, list(entry(2, here, here), entry(3, more, more))));
  for (int i = 0; i < 100; ++i) EXPECT_NE(rank.step(), Executor::Pace::Idle);
  EXPECT_TRUE(rank.script->started.empty());
  rank.run();
  ASSERT_EQ(rank.script->started.size(), 2U);
  EXPECT_EQ(rank.script->started.front().count, 300);
  EXPECT_THAT(there, Each(10));
  EXPECT_THAT(here, Each(14));
  EXPECT_THAT(more, Each(4));
}

TEST(HostCopies, MemoryThatIsBeingMadeIsWaitedFor) {
  MixedRank rank;
  rank.domain->makes_in = 4;
  std::vector<float> data(300, 1);
  rank.executor->enqueue(batch(0, list(on_device(entry(1, data, data)))));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rank.step(), Executor::Pace::Polling);
  EXPECT_EQ(rank.scratch->usage().bytes, 0U);
  rank.run();
  EXPECT_THAT(data, Each(2));
}

// Except for the oldest batch, which may exceed it.
TEST(HostCopies, KeepToTheLimitOfScratch) {
  constexpr size_t kOne = size_t{64} << 10;
  FakeDevice::Options options;
  options.delay_max = 5;
  MixedRank rank(options, 2 * kOne);
  std::vector<std::vector<float>> data(6, std::vector<float>(kOne / sizeof(float), 3));
  data[4].resize(4 * kOne / sizeof(float), 3);
  for (uint64_t i = 0; i < data.size(); ++i) {
    rank.executor->enqueue(batch(i, list(on_device(entry(i, data[i], data[i])))));
  }
  for (int i = 0; i < 20; ++i) {
    rank.step();
    EXPECT_LE(rank.scratch->usage().bytes, 2 * kOne);
  }
  rank.run();
  for (const std::vector<float>& each : data) EXPECT_THAT(each, Each(6));
  EXPECT_LE(rank.scratch->usage().bytes_peak, 4 * kOne) << "the one behind it waits";
}

// Memory to which the device or a peer may still write is never released, and only the batch fails.
TEST(HostCopies, StayIfTheDeviceOrTheOpFails) {
  for (int fails_at = -1; fails_at < 6; ++fails_at) {
    FakeDevice::Options options;
    options.fails_at = fails_at;
    auto rank = std::make_unique<MixedRank>(options);
    if (fails_at < 0) rank->script->fails_at = 0;
    const std::shared_ptr<OpScript> script = rank->script;
    auto data = std::make_unique<std::vector<float>>(300, 1);
    EntryWork work = on_device(entry(1, *data, *data));
    const std::byte* const memory = work.memory.front().input;
    rank->executor->enqueue(batch(0, list(std::move(work))));
    rank->run();
    ASSERT_EQ(rank->finished.size(), 1U);
    const FinishedBatch& failed = rank->finished.front();
    if (!failed.error) {
      EXPECT_GE(fails_at, 4) << "a copy and an event on each way";
      continue;
    }
    EXPECT_EQ(failed.entries.front().memory.front().input, memory);
    const bool by_op = fails_at < 0;
    EXPECT_EQ(std::string(failed.error->what()).find("the other rank is gone") != std::string::npos,
              by_op);
    const std::weak_ptr<const void> copies = rank->domain->latest;
    EXPECT_FALSE(copies.expired());
    rank.reset();
    EXPECT_FALSE(copies.expired()) << fails_at;
  }
}

}  // namespace
}  // namespace horon::core::host_copies_test
