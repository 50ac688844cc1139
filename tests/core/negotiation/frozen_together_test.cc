// Which frozen entries start together, and which wait for others.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/negotiation/controller.h"
#include "horon/core/negotiation/fusion_planner.h"
#include "horon/core/negotiation/ring_gate.h"
#include "horon/tests/core/negotiation/gate_world.h"

namespace horon::core {
namespace {

using gate_world::tensor;

// A job of one rank whose names have been frozen.
class FrozenAlone {
 public:
  explicit FrozenAlone(const std::vector<SpecPtr>& specs, int64_t fusion_bytes_max = 64 << 20)
      : area_(RingGate::bytes(1) + 64) {
    void* area = area_.data();
    size_t space = area_.size();
    gate_.emplace(static_cast<std::byte*>(std::align(64, RingGate::bytes(1), area, space)), 0, 1,
                  [] {});
    Controller::Options options;
    options.gate = &*gate_;
    options.freeze_after = 1;
    options.fusion_bytes_max = fusion_bytes_max;
    controller_.emplace(options);
    for (const SpecPtr& spec : specs) {
      (void)submit(spec);
      controller_->batch_finished();
    }
    EXPECT_EQ(controller_->statistics().freezes, specs.size());
  }
  // The batches that the submission starts, each as a list of names.
  std::vector<std::vector<std::string>> submit(const SpecPtr& spec) {
    controller_->submit({++ticket_, spec->parts.front().name, spec, {}, {}});
    return started();
  }
  std::vector<std::vector<std::string>> submit(const std::vector<SpecPtr>& specs) {
    for (const SpecPtr& spec : specs) {
      controller_->submit({++ticket_, spec->parts.front().name, spec, {}, {}});
    }
    return started();
  }
  std::vector<std::vector<std::string>> finish_batch() {
    controller_->batch_finished();
    return started();
  }

 private:
  std::vector<std::vector<std::string>> started() {
    std::vector<std::vector<std::string>> batches;
    for (const StartBatch& start : controller_->take_effects().starts) {
      batches.emplace_back();
      for (const StartEntry& entry : start.entries) batches.back().push_back(entry.name);
    }
    return batches;
  }

  std::vector<std::byte> area_;
  std::optional<RingGate> gate_;
  std::optional<Controller> controller_;
  Ticket ticket_ = 0;
};

using Batches = std::vector<std::vector<std::string>>;

// As the planner does. Otherwise a program that submits each entry in a turn of its own would start
// each small entry by itself.
TEST(FrozenTogether, SmallEntriesThatComeWhileBatchesRunStartTogether) {
  std::vector<SpecPtr> specs;
  for (const char* name : {"a", "b", "c", "d", "e"}) specs.push_back(tensor(name));
  FrozenAlone job(specs);
  EXPECT_EQ(job.submit(specs[0]), (Batches{{"a"}}));
  EXPECT_EQ(job.submit(specs[1]), (Batches{{"b"}}));
  for (int i = 2; i < 5; ++i) EXPECT_EQ(job.submit(specs[static_cast<size_t>(i)]), Batches{});
  EXPECT_EQ(job.finish_batch(), (Batches{{"c", "d", "e"}}));
  EXPECT_EQ(job.finish_batch(), Batches{});
  EXPECT_EQ(job.finish_batch(), Batches{});
  EXPECT_EQ(job.submit(specs[2]), (Batches{{"c"}}));
}

TEST(FrozenTogether, SmallEntriesThatFillABatchDoNotWait) {
  std::vector<SpecPtr> specs;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) specs.push_back(tensor(name));
  FrozenAlone job(specs, 2 * byte_count(*specs[0]));
  EXPECT_EQ(job.submit(specs[0]), (Batches{{"a"}}));
  EXPECT_EQ(job.submit(specs[1]), (Batches{{"b"}}));
  EXPECT_EQ(job.submit(specs[2]), Batches{});
  EXPECT_EQ(job.submit(specs[3]), (Batches{{"c", "d"}}));
  EXPECT_EQ(job.submit(specs[4]), Batches{}) << "what has started does not count";
  EXPECT_EQ(job.submit(specs[5]), (Batches{{"e", "f"}}));
}

// Otherwise a steady stream of other batches would hold them back for ever.
TEST(FrozenTogether, BatchesThatStartLaterHoldNoSmallEntryBack) {
  std::vector<SpecPtr> specs;
  for (const char* name : {"a", "b", "c", "d"}) specs.push_back(tensor(name));
  const SpecPtr large = tensor("large", 1 << 20);
  FrozenAlone job(specs, byte_count(*large));
  EXPECT_EQ(job.submit(specs[0]), (Batches{{"a"}}));
  EXPECT_EQ(job.submit(specs[1]), (Batches{{"b"}}));
  EXPECT_EQ(job.submit(specs[2]), Batches{});
  EXPECT_EQ(job.submit(large), (Batches{{"large"}})) << "it is negotiated, and long enough";
  EXPECT_EQ(job.submit(specs[3]), Batches{});
  EXPECT_EQ(job.finish_batch(), (Batches{{"c", "d"}}));
}

TEST(FrozenTogether, ALargeEntryDoesNotWait) {
  const std::vector<SpecPtr> specs = {tensor("a"), tensor("b"), tensor("c"),
                                      tensor("large", 1 << 20)};
  FrozenAlone job(specs);
  EXPECT_EQ(job.submit(specs[0]), (Batches{{"a"}}));
  EXPECT_EQ(job.submit(specs[1]), (Batches{{"b"}}));
  EXPECT_EQ(job.submit(specs[2]), Batches{});
  EXPECT_EQ(job.submit(specs[3]), (Batches{{"c"}, {"large"}}));
}

TEST(FrozenTogether, SmallEntriesOfSeveralKindsStartAsABatchOfEach) {
  std::vector<SpecPtr> specs;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    EntrySpec spec = *tensor(name);
    if (specs.size() % 2 == 1) spec.dtype = DataType::Float64;
    specs.push_back(std::make_shared<const EntrySpec>(spec));
  }
  FrozenAlone job(specs);
  EXPECT_EQ(job.submit(specs), (Batches{{"a", "c", "e"}, {"b", "d", "f"}}));
}

}  // namespace
}  // namespace horon::core
