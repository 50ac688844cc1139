#include "horon/core/runtime/runnable_calls.h"

#include <chrono>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/execution/executor.h"

namespace horon::core {
namespace {

using ::testing::HasSubstr;

// An op that counts how often it is asked.
class AllreduceOp final : public CollectiveOp {
 public:
  explicit AllreduceOp(int& asked) : asked_(asked) {}
  std::string_view name() const override { return "counted"; }
  std::string refusal(const BatchFacts& facts) const override {
    ++asked_;
    return facts.kind == CollectiveKind::Allreduce ? "" : "another kind";
  }
  PieceSizes piece_sizes(const Batch& like) const override { return {1, like.count, 2}; }
  std::unique_ptr<InFlight> start(Batch /*batch*/) override { return nullptr; }

 private:
  int& asked_;
};

struct Job {
  Job() {
    std::vector<std::unique_ptr<CollectiveOp>> list;
    list.push_back(std::make_unique<AllreduceOp>(asked));
    ops = std::make_unique<const OpTable>(std::move(list), "auto");
    lent = std::make_shared<LentOps>(*ops);
  }
  int asked = 0;
  std::unique_ptr<const OpTable> ops;
  std::shared_ptr<LentOps> lent;
};

TEST(RunnableCalls, WhatHasBeenRunIsNotAskedAboutAgain) {
  Job job;
  const RunnableCalls runnable(job.lent);
  BatchFacts facts;
  for (const DataType dtype : {DataType::Float32, DataType::Int64}) {
    facts.dtype = dtype;
    const int before = job.asked;
    EXPECT_EQ(runnable.fault(facts), "");
    EXPECT_EQ(job.asked, before + 1);
    facts.count = 1000;
    EXPECT_EQ(runnable.fault(facts), "");
    EXPECT_EQ(job.asked, before + 1);
  }
}

TEST(RunnableCalls, WhatCannotRunIsAFaultEachTime) {
  Job job;
  const RunnableCalls runnable(job.lent);
  BatchFacts facts;
  facts.kind = CollectiveKind::Gather;
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(runnable.fault(facts), HasSubstr("counted: no, another kind"));
  }
}

TEST(RunnableCalls, PiecesAreThoseOfTheOpThatRunsSuchBatches) {
  Job job;
  const RunnableCalls runnable(job.lent);
  Batch like;
  like.count = 7;
  EXPECT_EQ(runnable.piece_sizes(like), (PieceSizes{1, 7, 2}));
  like.kind = CollectiveKind::Gather;
  EXPECT_THROW((void)runnable.piece_sizes(like), Error);
  EXPECT_TRUE(job.lent->end());
  EXPECT_EQ(runnable.piece_sizes(like), PieceSizes());
}

TEST(RunnableCalls, AfterTheEndOfTheOpsNothingIsAFault) {
  Job job;
  const RunnableCalls runnable(job.lent);
  EXPECT_TRUE(job.lent->end());
  BatchFacts facts;
  facts.kind = CollectiveKind::Gather;
  EXPECT_EQ(runnable.fault(facts), "");
}

// An op that signals when it is asked, takes its time, and notes which thread destroys it.
class SlowOp final : public CollectiveOp {
 public:
  SlowOp(std::binary_semaphore& is_asked, std::thread::id& destroyed_by)
      : is_asked_(is_asked), destroyed_by_(destroyed_by) {}
  ~SlowOp() override { destroyed_by_ = std::this_thread::get_id(); }
  SlowOp(const SlowOp&) = delete;
  SlowOp& operator=(const SlowOp&) = delete;

  std::string_view name() const override { return "slow"; }
  std::string refusal(const BatchFacts& /*facts*/) const override {
    is_asked_.release();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return "";
  }
  std::unique_ptr<InFlight> start(Batch /*batch*/) override { return nullptr; }

 private:
  std::binary_semaphore& is_asked_;
  std::thread::id& destroyed_by_;
};

// A destructor may call MPI, which only one thread may do.
TEST(RunnableCalls, WhoeverEndsTheOpsDestroysThemWhileOthersAsk) {
  std::binary_semaphore is_asked{0};
  std::thread::id destroyed_by;
  std::vector<std::unique_ptr<CollectiveOp>> list;
  list.push_back(std::make_unique<SlowOp>(is_asked, destroyed_by));
  Executor::Parts parts;
  parts.ops = std::make_shared<OpTable>(std::move(list), "auto");
  auto executor = std::make_unique<Executor>(std::move(parts));
  const RunnableCalls runnable(executor->lent_ops());
  std::string fault = "none yet";
  std::thread asking([&] { fault = runnable.fault({}); });
  is_asked.acquire();
  executor.reset();
  asking.join();
  EXPECT_EQ(destroyed_by, std::this_thread::get_id());
  EXPECT_EQ(fault, "");
}

}  // namespace
}  // namespace horon::core
