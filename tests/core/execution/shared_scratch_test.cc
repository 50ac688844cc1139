// Scratch that an op provides for its batches: which batch gets it, and when.
#include "horon/core/execution/shared_scratch.h"

#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/execution/executor_rank.h"

namespace horon::core {
namespace {

using namespace executor_world;  // NOLINT(google-build-using-namespace)
using testing::Each;
using testing::ElementsAre;

// What the op is asked, and its answers.
struct Given {
  SharedScratch scratch;
  int none_before = 0;  // so many batches that ask first get none
  std::vector<size_t> asked;
  std::vector<int> enqueued_before;  // batches that were in the queue when it was asked
  int enqueued = 0;
  bool fails = false;  // after it has enqueued its work
};

class OpWithScratch final : public CollectiveOp {
 public:
  OpWithScratch(std::unique_ptr<CollectiveOp> inner, Given& given)
      : inner_(std::move(inner)), given_(given) {}
  std::string_view name() const override { return inner_->name(); }
  std::string refusal(const BatchFacts& facts) const override { return inner_->refusal(facts); }
  bool enqueues() const override { return true; }
  size_t shared_scratch_max() const override { return given_.scratch.bytes; }
  SharedScratch* shared_scratch(size_t bytes) override {
    given_.asked.push_back(bytes);
    given_.enqueued_before.push_back(given_.enqueued);
    if (given_.none_before-- > 0 || bytes > given_.scratch.bytes) return nullptr;
    return &given_.scratch;
  }
  std::unique_ptr<InFlight> start(Batch batch) override {
    return std::make_unique<Flight>(inner_->start(std::move(batch)), given_);
  }

 private:
  class Flight final : public InFlight {
   public:
    Flight(std::unique_ptr<InFlight> inner, Given& given)
        : inner_(std::move(inner)), given_(given) {}
    Progress step() override {
      const Progress progress = inner_->step();
      if (given_.fails) throw Error(ErrorCode::OperationFailed, "on purpose");
      given_.enqueued += progress == Progress::Done ? 1 : 0;
      return progress;
    }

   private:
    const std::unique_ptr<InFlight> inner_;
    Given& given_;
  };
  const std::unique_ptr<CollectiveOp> inner_;
  Given& given_;
};

// One rank alone, whose op takes some calls to enqueue.
class SharedScratchOfAnOp : public testing::Test {
 protected:
  void start() {
    given_.scratch.memory = memory_.data();
    given_.scratch.bytes = memory_.size();
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(std::make_unique<OpWithScratch>(
        std::make_unique<FakeOp>(0, meeting_, FakeDelays{.op_polls = 2}, DeviceKind::Cuda,
                                 FakeMemory::Enqueued),
        given_));
    Executor::Parts parts;
    parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
    auto domain = std::make_unique<FakeDomain>(DeviceKind::Cuda, device_);
    domain_ = domain.get();
    parts.scratch = test::scratch_of(std::move(domain));
    executor_ = std::make_unique<Executor>(std::move(parts));
  }
  void run() {
    for (int i = 0; i < 1000; ++i) {
      const Executor::Pace pace = executor_->step(finished_, enqueued_);
      while (device_->turn()) continue;
      if (pace == Executor::Pace::Idle) return;
    }
    FAIL() << "the executor does not come to rest";
  }

  Given given_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  const std::shared_ptr<FakeMeeting> meeting_ = std::make_shared<FakeMeeting>(1);
  const std::shared_ptr<FakeDevice> device_ =
      std::make_shared<FakeDevice>(FakeDevice::Options{.by_hand = true});
  FakeDomain* domain_ = nullptr;
  std::unique_ptr<Executor> executor_;
  std::vector<FinishedBatch> finished_;
  std::vector<EnqueuedBatch> enqueued_;
};

// Otherwise ranks that reach a batch at different moments would get different answers.
TEST_F(SharedScratchOfAnOp, IsAskedForWhenAllEarlierBatchesAreInTheQueue) {
  start();
  given_.none_before = 1;
  std::vector<std::vector<float>> tensors(8, std::vector<float>(5, 1));
  for (size_t i = 0; i < 4; ++i) {
    executor_->enqueue(batch(i, list(entry(1, tensors[2 * i]), entry(2, tensors[2 * i + 1]))));
  }
  run();
  EXPECT_THAT(given_.asked, ElementsAre(40, 40, 40, 40));
  EXPECT_THAT(given_.enqueued_before, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(domain_->allocations(), 1);  // for the batch that was given none
  EXPECT_EQ(given_.scratch.users, 0);
  EXPECT_TRUE(given_.scratch.last_used->happened());
  EXPECT_THAT(tensors, Each(Each(1.0F)));
}

TEST_F(SharedScratchOfAnOp, IsForWhatFitsThere) {
  start();
  std::vector<float> large(2000, 1), small(3, 1);
  executor_->enqueue(batch(0, list(entry(1, large), entry(2, small))));
  executor_->enqueue(batch(1, list(entry(1, small), entry(2, small))));
  run();
  EXPECT_EQ(domain_->allocations(), 1);
  EXPECT_THAT(given_.asked, ElementsAre(24));
}

// Not for batches that one rank packs and another need not: a group, an entry that it has joined, a
// gather.
TEST_F(SharedScratchOfAnOp, IsForWhatAllRanksPack) {
  start();
  std::vector<float> first(4, 1), second(4, 1);
  auto* const at_first = reinterpret_cast<std::byte*>(first.data());
  auto* const at_second = reinterpret_cast<std::byte*>(second.data());
  executor_->enqueue(
      batch(0, list(entry(1, first, {{at_first, at_first, 2}, {at_second, at_second, 2}}))));
  EntryWork joined = entry(1, first);
  joined.mine = false;
  joined.memory.clear();
  executor_->enqueue(batch(1, list(std::move(joined))));
  executor_->enqueue(batch(2, list(entry(1, second))));
  run();
  EXPECT_TRUE(given_.asked.empty());
  EXPECT_GT(domain_->allocations(), 0);
  EntryWork narrowed = entry(1, second);
  auto spec = std::make_shared<EntrySpec>(*narrowed.spec);
  spec->compression = Compression::BFloat16;
  narrowed.spec = std::move(spec);
  executor_->enqueue(batch(3, list(std::move(narrowed))));
  run();
  EXPECT_THAT(given_.asked, ElementsAre(8));
  EXPECT_THAT(second, Each(1.0F));
}

// The batch may still use the scratch.
TEST_F(SharedScratchOfAnOp, ABatchThatFailsStaysAUser) {
  start();
  given_.fails = true;
  std::vector<float> first(4, 1), second(4, 1);
  executor_->enqueue(batch(0, list(entry(1, first), entry(2, second))));
  run();
  ASSERT_EQ(finished_.size(), 1U);
  EXPECT_TRUE(finished_.front().error.has_value());
  EXPECT_EQ(given_.scratch.users, 1);
}

}  // namespace
}  // namespace horon::core
