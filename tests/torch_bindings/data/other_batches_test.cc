// Samplers that go on with batches of another size, and at the end of an epoch. Needs no session.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/torch_bindings/data/sampler_support.h"
#include "horon/torch_bindings/data/samplers.h"
#include "horon/torch_bindings/data/stream_sampler.h"

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

// An epoch that has ended leaves no samples to other ranks or batches, nor those it has left out.
TEST(OtherBatches, AnEpochThatHasEndedStaysEnded) {
  const auto random = [](const SamplerOptions& options) {
    return std::make_unique<DistributedRandomSampler>(11, options);
  };
  const auto in_batches = [](size_t batch) -> MakeSampler {
    return [=](const SamplerOptions& options) {
      return std::make_unique<DistributedBatchSampler>(101, batch, options);
    };
  };
  const auto balanced = [](const SamplerOptions& options) {
    return std::make_unique<BalancedBatchSampler>(std::vector<double>(101, 1.0), 9, options);
  };
  const auto draws = [](Ranks& job) {
    std::vector<size_t> drawn;
    draw(job, kAll, drawn);
    return drawn.size();
  };
  struct Case {
    MakeSampler before, after;
    size_t samples, of_next;
  };
  for (const Case& each : std::vector<Case>{{random, random, 8, 10},
                                            {in_batches(9), in_batches(5), 72, 100},
                                            {balanced, balanced, 72, 90}}) {
    Ranks four = make_ranks(each.before, 4, {.seed = 3, .drop_last = true});
    EXPECT_EQ(draws(four), each.samples);
    Ranks two = make_ranks(each.after, 2, {.drop_last = true});
    go_on(four, two);
    EXPECT_EQ(two.front()->samples_per_epoch(), 0u);
    Ranks three = make_ranks(each.before, 3, {.drop_last = true});
    go_on(two, three);
    EXPECT_EQ(draws(three), 0u);
    EXPECT_EQ(draws(two), 0u);
    for (auto& sampler : two) sampler->reset();
    EXPECT_EQ(two.front()->epoch(), 1u);
    EXPECT_EQ(draws(two), each.of_next);
  }
  // An epoch that has not begun has not ended, though four ranks could draw nothing of it.
  const auto few = [](const SamplerOptions& options) {
    return std::make_unique<DistributedRandomSampler>(3, options);
  };
  Ranks four = make_ranks(few, 4, {.drop_last = true}),
        two = make_ranks(few, 2, {.drop_last = true});
  go_on(four, two);
  EXPECT_EQ(draws(two), 2u);
}

TEST(OtherBatches, AStreamThatHasEndedStaysEnded) {
  const auto sampler = [](size_t ranks, size_t rank) {
    return DistributedStreamSampler({.num_replicas = ranks, .rank = rank, .records = 11});
  };
  DistributedStreamSampler of_four = sampler(4, 1), of_three = sampler(3, 2);
  EXPECT_EQ(of_four.next(2)->count, 2u);
  hand_over(of_four, of_three);
  of_three.reset();
  EXPECT_EQ(of_three.next(2), std::nullopt);
  of_three.reset();
  EXPECT_EQ(of_three.next(9)->count, 3u);
  EXPECT_EQ(of_three.epoch(), 1u);
  // Before the end the rest is shared out.
  DistributedStreamSampler in_mid_epoch = sampler(4, 1);
  EXPECT_EQ(in_mid_epoch.next(1)->count, 1u);
  hand_over(in_mid_epoch, of_three);
  EXPECT_EQ(of_three.next(9)->count, 2u);
  // One that has not begun has not ended, though four ranks could read nothing of it.
  const DistributedStreamSampler few({.num_replicas = 4, .rank = 0, .records = 3});
  DistributedStreamSampler of_two({.num_replicas = 2, .rank = 1, .records = 3}), all = of_two;
  hand_over(few, of_two);
  EXPECT_EQ(of_two.next(9)->count, 1u);
}

TEST(OtherBatches, AStreamThatHasEndedUnevenlyStaysEnded) {
  const auto job = [](size_t ranks) {
    std::vector<DistributedStreamSampler> all;
    for (size_t r = 0; r < ranks; ++r) {
      all.push_back(DistributedStreamSampler(
          {.num_replicas = ranks, .rank = r, .records = 11, .drop_last = false}));
    }
    return all;
  };
  std::vector<DistributedStreamSampler> four = job(4), three = job(3);
  const auto go_on = [&] {
    for (DistributedStreamSampler& sampler : three) {
      std::vector<torch::serialize::InputArchive> parts;
      for (const DistributedStreamSampler& old : four) parts.push_back(saved(old));
      sampler.load_resharded(parts);
    }
  };
  for (DistributedStreamSampler& sampler : four) EXPECT_EQ(sampler.next(2)->count, 2u);
  EXPECT_EQ(four[0].next(2)->count, 1u);
  EXPECT_ANY_THROW(go_on()) << "ranks 1 and 2 are not at the end";
  for (const size_t r : {1, 2}) EXPECT_EQ(four[r].next(2)->count, 1u);
  EXPECT_EQ(four[3].next(2), std::nullopt);
  go_on();
  for (DistributedStreamSampler& sampler : three) {
    EXPECT_EQ(sampler.next(2), std::nullopt);
    sampler.reset();
    EXPECT_EQ(sampler.epoch(), 1u);
  }
  EXPECT_EQ(three[1].next(9)->count, 4u);
}

}  // namespace
}  // namespace horon::other_batches_test
