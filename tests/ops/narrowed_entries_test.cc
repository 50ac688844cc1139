// Entries with compression whose memory the caller has narrowed: nothing is packed.
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/batch_description.h"
#include "horon/core/execution/executor.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/host/host_memory.h"

namespace horon::ops {
namespace {

using core::Batch;
using core::EntryWork;
using core::Progress;
using testing::ElementsAre;

// The allreduce of one rank, which notes what it was given.
class NotingOp final : public core::CollectiveOp {
 public:
  explicit NotingOp(std::vector<Batch>& batches) : batches_(batches) {}
  std::string_view name() const override { return "noting_allreduce"; }
  std::string refusal(const core::BatchFacts&) const override { return ""; }
  std::unique_ptr<core::InFlight> start(Batch batch) override {
    class Nothing final : public core::InFlight {
      Progress step() override { return Progress::Done; }
    };
    batches_.push_back(batch);
    return std::make_unique<Nothing>();
  }

 private:
  std::vector<Batch>& batches_;
};

struct World {
  World() {
    std::vector<std::unique_ptr<core::CollectiveOp>> ops;
    ops.push_back(std::make_unique<NotingOp>(batches));
    core::Executor::Parts parts;
    parts.ops = std::make_shared<core::OpTable>(std::move(ops), "auto");
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(nullptr));
    parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
    executor = std::make_unique<core::Executor>(std::move(parts));
  }

  void run(std::vector<EntryWork> entries) {
    core::BatchWork work;
    work.sequence = sequence++;
    work.entries = std::move(entries);
    executor->enqueue(std::move(work));
    std::vector<core::FinishedBatch> finished;
    std::vector<core::EnqueuedBatch> enqueued;
    for (int i = 0; i < 20; ++i) (void)executor->step(finished, enqueued);
    ASSERT_EQ(finished.size(), 1U);
    EXPECT_FALSE(finished[0].error) << finished[0].error->what();
  }

  std::vector<Batch> batches;
  std::unique_ptr<core::Executor> executor;
  uint64_t sequence = 0;
};

std::shared_ptr<const core::EntrySpec> spec_of(int64_t count) {
  auto spec = std::make_shared<core::EntrySpec>();
  spec->prescale = 0.5;
  spec->postscale = 3;
  spec->compression = Compression::BFloat16;
  spec->parts = {{"t", {count}}};
  return spec;
}

struct Narrowed {
  explicit Narrowed(const std::vector<float>& values) : wire(values.size()), result(values.size()) {
    narrow(DataType::BFloat16, values.data(), memory(), count(), 0.5);
  }
  std::byte* memory() { return reinterpret_cast<std::byte*>(wire.data()); }
  int64_t count() const { return static_cast<int64_t>(wire.size()); }
  EntryWork entry(std::shared_ptr<const core::EntrySpec> spec) {
    EntryWork work;
    work.name = "t";
    work.spec = std::move(spec);
    work.memory = {{memory(), reinterpret_cast<std::byte*>(result.data()), count()}};
    work.narrowed = true;
    return work;
  }

  std::vector<uint16_t> wire;
  std::vector<float> result;
};

TEST(NarrowedEntries, TheCollectiveWorksInTheCallersMemory) {
  World world;
  const auto spec = spec_of(3);
  for (int step = 0; step < 2; ++step) {  // the second time it is prepared
    Narrowed tensor({1, 2, 1 + 1.0F / 4096});
    std::vector<EntryWork> entries;
    entries.push_back(tensor.entry(spec));
    world.run(std::move(entries));
    const Batch& batch = world.batches.back();
    EXPECT_EQ(batch.input, tensor.memory());
    EXPECT_EQ(batch.output, tensor.memory());
    EXPECT_EQ(batch.dtype, DataType::BFloat16);
    EXPECT_EQ(batch.count, 3);
    EXPECT_EQ(batch.prescale, 1) << "it is in the memory already";
    EXPECT_THAT(tensor.result, ElementsAre(1.5F, 3, 1.5F));
  }
}

// The batch stays float32; between hosts the op may send it in blocks, if it is in host memory.
TEST(NarrowedEntries, Int8IsLeftToTheOp) {
  core::EntrySpec spec = *spec_of(3);
  spec.compression = Compression::Int8;
  constexpr std::array<int, 2> ranks = {0, 1};
  Batch batch = core::describe_batch(spec, 2, ranks);
  EXPECT_EQ(batch.dtype, DataType::Float32);
  EXPECT_TRUE(batch.int8_between_hosts);
  EXPECT_EQ(batch.prescale, 0.5);
  EXPECT_EQ(batch.postscale, 3);
  spec.device = DeviceKind::Cuda;
  EXPECT_TRUE(core::describe_batch(spec, 2, ranks).int8_between_hosts);
  spec = *spec_of(3);
  EXPECT_FALSE(core::describe_batch(spec, 2, ranks).int8_between_hosts);
}

TEST(NarrowedEntries, FuseWithOthers) {
  World world;
  Narrowed first({2, 4}), second({6});
  std::vector<float> wide = {8, 10};
  EntryWork unlike = first.entry(spec_of(2));
  unlike.narrowed = false;
  unlike.memory = {
      {reinterpret_cast<std::byte*>(wide.data()), reinterpret_cast<std::byte*>(wide.data()), 2}};
  std::vector<EntryWork> entries;
  entries.push_back(first.entry(spec_of(2)));
  entries.push_back(std::move(unlike));
  entries.push_back(second.entry(spec_of(1)));
  world.run(std::move(entries));
  EXPECT_EQ(world.batches.back().count, 5);
  EXPECT_THAT(first.result, ElementsAre(3, 6));
  EXPECT_THAT(wide, ElementsAre(12, 15));
  EXPECT_THAT(second.result, ElementsAre(9));
}

}  // namespace
}  // namespace horon::ops
