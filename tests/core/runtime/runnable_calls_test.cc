#include "horon/core/runtime/runnable_calls.h"

#include <chrono>
#include <functional>
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

// An op that signals when it is asked, waits, and notes which thread destroys it.
class SlowOp final : public CollectiveOp {
 public:
  SlowOp(std::binary_semaphore& is_asked, std::function<void()> wait, std::thread::id& destroyed_by)
      : is_asked_(is_asked), wait_(std::move(wait)), destroyed_by_(destroyed_by) {}
  ~SlowOp() override { destroyed_by_ = std::this_thread::get_id(); }
  SlowOp(const SlowOp&) = delete;
  SlowOp& operator=(const SlowOp&) = delete;

  std::string_view name() const override { return "slow"; }
  std::string refusal(const BatchFacts& /*facts*/) const override {
    is_asked_.release();
    wait_();
    return "";
  }
  std::unique_ptr<InFlight> start(Batch /*batch*/) override { return nullptr; }

 private:
  std::binary_semaphore& is_asked_;
  const std::function<void()> wait_;
  std::thread::id& destroyed_by_;
};

std::unique_ptr<Executor> executor_of(std::unique_ptr<CollectiveOp> op) {
  std::vector<std::unique_ptr<CollectiveOp>> list;
  list.push_back(std::move(op));
  Executor::Parts parts;
  parts.ops = std::make_shared<OpTable>(std::move(list), "auto");
  return std::make_unique<Executor>(std::move(parts));
}

// The thread has called exit() in a signal handler, say.
TEST(RunnableCalls, OpsThatAThreadIsAskingForEverAreNotDestroyed) {
  std::binary_semaphore is_asked{0}, comes_back{0};
  std::thread::id destroyed_by;
  auto executor = executor_of(std::make_unique<SlowOp>(
      is_asked, [&] { comes_back.acquire(); }, destroyed_by));
  const RunnableCalls runnable(executor->lent_ops());
  std::thread asking([&] { (void)runnable.fault({}); });
  is_asked.acquire();
  executor.reset();
  EXPECT_EQ(destroyed_by, std::thread::id());
  comes_back.release();
  asking.join();
}

// A destructor may call MPI, which only one thread may do.
TEST(RunnableCalls, WhoeverEndsTheOpsDestroysThemWhileOthersAsk) {
  std::binary_semaphore is_asked{0};
  std::thread::id destroyed_by;
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  auto executor = executor_of(std::make_unique<SlowOp>(is_asked, wait, destroyed_by));
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
