#include "horon/core/runtime/runnable_calls.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"

namespace horon::core {
namespace {

using ::testing::HasSubstr;

// Counts how often it is asked.
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
    ops = std::make_shared<const OpTable>(std::move(list), "auto");
  }
  int asked = 0;
  std::shared_ptr<const OpTable> ops;
};

TEST(RunnableCalls, WhatHasBeenRunIsNotAskedAboutAgain) {
  Job job;
  const RunnableCalls runnable(job.ops);
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
  const RunnableCalls runnable(job.ops);
  BatchFacts facts;
  facts.kind = CollectiveKind::Gather;
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(runnable.fault(facts), HasSubstr("counted: no, another kind"));
  }
}

TEST(RunnableCalls, PiecesAreThoseOfTheOpThatRunsSuchBatches) {
  Job job;
  const RunnableCalls runnable(job.ops);
  Batch like;
  like.count = 7;
  EXPECT_EQ(runnable.piece_sizes(like), (PieceSizes{1, 7, 2}));
  like.kind = CollectiveKind::Gather;
  EXPECT_THROW((void)runnable.piece_sizes(like), Error);
  job.ops.reset();
  EXPECT_EQ(runnable.piece_sizes(like), PieceSizes());
}

TEST(RunnableCalls, AfterTheEndOfTheOpsNothingIsAFault) {
  Job job;
  const RunnableCalls runnable(job.ops);
  job.ops.reset();
  BatchFacts facts;
  facts.kind = CollectiveKind::Gather;
  EXPECT_EQ(runnable.fault(facts), "");
}

}  // namespace
}  // namespace horon::core
