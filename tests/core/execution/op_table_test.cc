#include "horon/core/execution/op_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"

namespace horon::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// An op that takes one kind of collective on one kind of memory, up to a number of elements.
class LimitedOp final : public CollectiveOp {
 public:
  LimitedOp(std::string name, CollectiveKind kind, int64_t count_max,
            DeviceKind device = DeviceKind::Host, bool works_in_host_copies = false)
      : name_(std::move(name)),
        kind_(kind),
        count_max_(count_max),
        device_(device),
        works_in_host_copies_(works_in_host_copies) {}

  std::string_view name() const override { return name_; }
  std::string refusal(const BatchFacts& facts) const override {
    if (facts.kind != kind_) return "another kind";
    if (facts.device != device_) return "another memory";
    return facts.count > count_max_ ? "too long" : "";
  }
  bool works_in_host_copies() const override { return works_in_host_copies_; }
  std::unique_ptr<InFlight> start(Batch) override { return nullptr; }

 private:
  std::string name_;
  CollectiveKind kind_;
  int64_t count_max_;
  DeviceKind device_;
  bool works_in_host_copies_;
};

OpTable table(const std::string& allreduce) {
  std::vector<std::unique_ptr<CollectiveOp>> ops;
  ops.push_back(std::make_unique<LimitedOp>("shm_allreduce", CollectiveKind::Allreduce, 10));
  ops.push_back(std::make_unique<LimitedOp>("mpi_allreduce", CollectiveKind::Allreduce, 1000));
  ops.push_back(std::make_unique<LimitedOp>("mpi_broadcast", CollectiveKind::Broadcast, 1000));
  return OpTable(std::move(ops), allreduce);
}

BatchFacts facts_of(CollectiveKind kind, int64_t count) {
  BatchFacts facts;
  facts.kind = kind;
  facts.count = count;
  return facts;
}

TEST(OpTable, TakesTheFirstThatFits) {
  const OpTable ops = table("auto");
  EXPECT_EQ(ops.select(facts_of(CollectiveKind::Allreduce, 10)).name(), "shm_allreduce");
  EXPECT_EQ(ops.select(facts_of(CollectiveKind::Allreduce, 11)).name(), "mpi_allreduce");
  EXPECT_EQ(ops.select(facts_of(CollectiveKind::Broadcast, 1)).name(), "mpi_broadcast");
}

TEST(OpTable, TheKnobChoosesAmongAllreducesOnly) {
  const OpTable ops = table("mpi");
  EXPECT_EQ(ops.select(facts_of(CollectiveKind::Allreduce, 1)).name(), "mpi_allreduce");
  EXPECT_EQ(table("shm").select(facts_of(CollectiveKind::Broadcast, 1)).name(), "mpi_broadcast");
}

// For other memory, ops are chosen as without the knob.
TEST(OpTable, TheKnobIsForMemoryThatTheOpIsFor) {
  const auto with_gpu = [](const std::string& knob) {
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(std::make_unique<LimitedOp>("shm_allreduce", CollectiveKind::Allreduce, 10));
    ops.push_back(std::make_unique<LimitedOp>("mpi_allreduce", CollectiveKind::Allreduce, 10));
    ops.push_back(std::make_unique<LimitedOp>("nccl_allreduce", CollectiveKind::Allreduce, 10,
                                              DeviceKind::Cuda));
    return OpTable(std::move(ops), knob);
  };
  BatchFacts on_gpu;
  on_gpu.device = DeviceKind::Cuda;
  EXPECT_EQ(with_gpu("mpi").select(on_gpu).name(), "nccl_allreduce");
  EXPECT_EQ(with_gpu("mpi").select({}).name(), "mpi_allreduce");
  EXPECT_EQ(with_gpu("nccl").select(on_gpu).name(), "nccl_allreduce");
  EXPECT_EQ(with_gpu("nccl").select({}).name(), "shm_allreduce");
}

TEST(OpTable, KnowsWhatItCanRun) {
  const OpTable ops = table("auto");
  for (int again = 0; again < 2; ++again) {
    EXPECT_TRUE(ops.can_run(facts_of(CollectiveKind::Broadcast, 1)));
    EXPECT_FALSE(ops.can_run(facts_of(CollectiveKind::Gather, 1)));
  }
}

TEST(OpTable, TheKnobIsNotForAdasum) {
  BatchFacts facts;
  facts.reduce_op = ReduceOp::Adasum;
  EXPECT_EQ(table("mpi").select(facts).name(), "shm_allreduce") << "the first that can";
}

TEST(OpTable, SaysWhy) {
  EXPECT_THAT(table("auto").explain(facts_of(CollectiveKind::Allreduce, 1)),
              ElementsAre("shm_allreduce: chosen", HasSubstr("mpi_allreduce: fits, but"),
                          HasSubstr("mpi_broadcast: no, another kind")));
  EXPECT_THAT(table("mpi").explain(facts_of(CollectiveKind::Allreduce, 1)),
              ElementsAre(HasSubstr("HORON_ALLREDUCE"), "mpi_allreduce: chosen",
                          HasSubstr("another kind")));
}

// The knob is about collectives of host memory, and no reason to move tensors to the host.
TEST(OpTable, TheKnobTakesNoTensorsToTheHost) {
  const auto name_of = [](const std::string& knob, bool has_nccl, int64_t count) {
    constexpr auto kAllreduce = CollectiveKind::Allreduce;
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(std::make_unique<LimitedOp>("shm_allreduce", kAllreduce, 1000));
    ops.push_back(std::make_unique<LimitedOp>("mpi_allreduce", kAllreduce, 1000));
    if (has_nccl) {
      ops.push_back(
          std::make_unique<LimitedOp>("nccl_allreduce", kAllreduce, 10, DeviceKind::Cuda));
    }
    for (const char* name : {"shm_allreduce_staged", "mpi_allreduce_staged"}) {
      ops.push_back(std::make_unique<LimitedOp>(name, kAllreduce, 1000, DeviceKind::Cuda, true));
    }
    BatchFacts facts = facts_of(kAllreduce, count);
    facts.device = DeviceKind::Cuda;
    return std::string(OpTable(std::move(ops), knob).select(facts).name());
  };
  EXPECT_EQ(name_of("mpi", true, 10), "nccl_allreduce");
  EXPECT_EQ(name_of("mpi", true, 11), "shm_allreduce_staged") << "where NCCL can't";
  EXPECT_EQ(name_of("mpi", false, 10), "mpi_allreduce_staged");
  EXPECT_EQ(name_of("auto", false, 10), "shm_allreduce_staged");
}

// Each of them may have enqueued work that waits for peers that are gone.
TEST(OpTable, TheEndOfTheJobIsToldToEveryOp) {
  class EndedOp final : public CollectiveOp {
   public:
    explicit EndedOp(std::vector<std::string>& told) : told_(told) {}
    std::string_view name() const override { return "ended"; }
    std::string refusal(const BatchFacts&) const override { return ""; }
    std::unique_ptr<InFlight> start(Batch) override { return nullptr; }
    void abort() noexcept override { told_.emplace_back("abort"); }
    void finish_abort(std::chrono::steady_clock::time_point) noexcept override {
      told_.emplace_back("finish");
    }

   private:
    std::vector<std::string>& told_;
  };
  std::vector<std::string> told;
  std::vector<std::unique_ptr<CollectiveOp>> list;
  for (int i = 0; i < 2; ++i) list.push_back(std::make_unique<EndedOp>(told));
  OpTable ops(std::move(list), "auto");
  ops.abort();
  ops.finish_abort({});
  EXPECT_THAT(told, ElementsAre("abort", "abort", "finish", "finish"));
}

TEST(OpTable, NothingFitsIsAnErrorWithAllReasons) {
  try {
    table("shm").select(facts_of(CollectiveKind::Allreduce, 11));
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Config);
    EXPECT_THAT(error.what(), HasSubstr("shm_allreduce: no, too long"));
    EXPECT_THAT(error.what(), HasSubstr("mpi_allreduce: no, HORON_ALLREDUCE"));
    EXPECT_THAT(error.what(), Not(HasSubstr("mpi_broadcast"))) << "no allreduce at all";
  }
}

TEST(OpTable, AKnobThatNoOpAnswersToIsAnErrorAtOnce) {
  try {
    table("nccl");
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Config);
    EXPECT_THAT(error.what(), HasSubstr("HORON_ALLREDUCE=nccl: this job has no such allreduce"));
  }
}

}  // namespace
}  // namespace horon::core
