// Samplers that go on with batches of another size. Needs no session.
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/torch_bindings/data/sampler_support.h"
#include "horon/torch_bindings/data/samplers.h"

namespace horon::other_batches_test {
namespace {

using namespace testing_support;

// A job on fewer ranks mostly takes larger batches, so that a step has as many samples as before.
TEST(OtherBatches, NoSampleIsLostOrTwice) {
  const auto sampler_of = [](bool balanced, size_t batch) -> MakeSampler {
    return [=](const SamplerOptions& options) -> std::unique_ptr<ShardedSampler> {
      if (!balanced) return std::make_unique<DistributedBatchSampler>(97, batch, options);
      std::vector<double> costs(97);
      for (size_t i = 0; i < costs.size(); ++i) costs[i] = static_cast<double>(i * 37 % 101);
      return std::make_unique<BalancedBatchSampler>(costs, batch, options, 2);
    };
  };
  for (const bool balanced : {false, true}) {
    for (const auto& [ranks, batch] :
         std::vector<std::pair<size_t, size_t>>{{4, 8}, {2, 16}, {4, 5}, {3, 7}, {1, 30}}) {
      SCOPED_TRACE(testing::Message() << balanced << ", to " << ranks << " with " << batch);
      std::vector<size_t> drawn;
      Ranks four = make_ranks(sampler_of(balanced, 3), 4, {.seed = 5, .drop_last = true});
      for (auto& sampler : four) {
        sampler->set_epoch(3);
        sampler->reset();
      }
      draw(four, 3, drawn);
      Ranks others = make_ranks(sampler_of(balanced, batch), ranks, {.drop_last = true});
      if (ranks == 4) {  // as Checkpoints does
        for (size_t r = 0; r < 4; ++r) hand_over(*four[r], *others[r]);
      } else {
        go_on(four, others);
      }
      const size_t rest = (97 - 36) / (ranks * batch) * ranks * batch;
      for (auto& sampler : others) EXPECT_EQ(sampler->samples_per_epoch(), rest / ranks);
      draw(others, kAll, drawn);
      EXPECT_EQ(drawn.size(), 36 + rest);
      EXPECT_EQ(std::set<size_t>(drawn.begin(), drawn.end()).size(), drawn.size())
          << "one is twice";
    }
  }
  // Where nothing is dropped, each rank goes on in what it was dealt.
  std::vector<size_t> drawn;
  Ranks three = make_ranks(sampler_of(false, 3), 3, {.uneven = true});
  draw(three, 10, drawn);  // 3, 2 and 2 are left
  Ranks larger = make_ranks(sampler_of(false, 20), 3, {.uneven = true});
  for (size_t r = 0; r < 3; ++r) hand_over(*three[r], *larger[r]);
  draw(larger, kAll, drawn);
  EXPECT_EQ(std::set<size_t>(drawn.begin(), drawn.end()).size(), 97u);
  EXPECT_EQ(drawn.size(), 97u);
}

}  // namespace
}  // namespace horon::other_batches_test
