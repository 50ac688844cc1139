// Samplers that go on where a job of any number of ranks has stopped; batches, costs and streams.
// Needs no session.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <torch/data.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/data/sampler_support.h"
#include "horon/torch_bindings/data/samplers.h"
#include "horon/torch_bindings/data/stream_sampler.h"

namespace horon::resumed_samplers_test {
namespace {

using test::error_of;
using testing::HasSubstr;
using namespace testing_support;

const std::map<std::string, MakeSampler> kSamplers = {
    {"random",
     [](const SamplerOptions& options) {
       return std::make_unique<DistributedRandomSampler>(97, options);
     }},
    {"sequential",
     [](const SamplerOptions& options) {
       return std::make_unique<DistributedSequentialSampler>(97, options);
     }},
    {"batch",
     [](const SamplerOptions& options) {
       return std::make_unique<DistributedBatchSampler>(97, 3, options);
     }},
    {"balanced", [](const SamplerOptions& options) {
       std::vector<double> costs(97);
       for (size_t i = 0; i < costs.size(); ++i) costs[i] = static_cast<double>(i * 37 % 101);
       return std::make_unique<BalancedBatchSampler>(costs, 3, options, 2);
     }}};

// Every sample of the epoch is drawn once in three jobs of any numbers of ranks, each of which goes
// on where the one before has stopped.
TEST(ResumedSamplers, AtAnotherNumberOfRanksNoSampleIsLostOrTwice) {
  for (const auto& [name, make] : kSamplers) {
    for (const auto& [first, second, third] : std::vector<std::array<size_t, 3>>{
             {2, 3, 1}, {4, 1, 3}, {1, 4, 2}, {3, 3, 5}, {5, 2, 2}}) {
      SCOPED_TRACE(testing::Message() << name << " " << first << " " << second << " " << third);
      const SamplerOptions options{.seed = 5, .uneven = true};
      std::vector<size_t> drawn;
      Ranks one = make_ranks(make, first, options);
      for (auto& sampler : one) {
        sampler->set_epoch(4);
        sampler->reset();
      }
      draw(one, 3, drawn);
      // Stopped with its ranks at different places.
      const std::vector<size_t> more = *one.front()->next(2);
      drawn.insert(drawn.end(), more.begin(), more.end());

      Ranks two = make_ranks(make, second, {.seed = 99, .uneven = true});  // the saved seed counts
      go_on(one, two);
      draw(two, 2, drawn);
      Ranks three = make_ranks(make, third, {.uneven = true});
      go_on(two, three);
      EXPECT_EQ(three.front()->epoch(), 4u);
      draw(three, kAll, drawn);
      std::sort(drawn.begin(), drawn.end());
      std::vector<size_t> all(97);
      std::iota(all.begin(), all.end(), size_t{0});
      EXPECT_EQ(drawn, all);

      // And the epoch after that is a whole one.
      for (auto& sampler : three) sampler->reset();
      draw(three, kAll, drawn = {});
      std::sort(drawn.begin(), drawn.end());
      EXPECT_EQ(drawn, all);
      EXPECT_EQ(three.front()->epoch(), 5u);
    }
  }
}

// One rank's place is enough where all draw alike, as load() takes it; and even shares stay even.
TEST(ResumedSamplers, OneRanksPlaceIsEnoughWhereAllDrawAlike) {
  const auto& make = kSamplers.at("random");
  std::vector<size_t> drawn;
  Ranks four = make_ranks(make, 4, {.seed = 8, .drop_last = true});
  draw(four, 5, drawn);
  Ranks three = make_ranks(make, 3, {.drop_last = true});
  for (auto& sampler : three) {
    hand_over(*four.back(), *sampler);
    sampler->reset();
    EXPECT_EQ(sampler->samples_per_epoch(), (97u - 60u) / 3u);
  }
  draw(three, kAll, drawn);
  EXPECT_EQ(drawn.size(), 96u);
  EXPECT_EQ(std::set<size_t>(drawn.begin(), drawn.end()).size(), 96u) << "none comes twice";
}

// After load() a loader resets first, while a program of its own may draw at once: both go on.
TEST(ResumedSamplers, GoOnWithAndWithoutReset) {
  const SamplerOptions options{.num_replicas = 1, .rank = 0};
  DistributedRandomSampler first(10, options);
  first.next(8);
  DistributedRandomSampler second(10, options);
  hand_over(first, second);
  EXPECT_EQ(second.next(8)->size(), 2u);
  EXPECT_EQ(second.next(8), std::nullopt);
  second.reset();
  EXPECT_EQ(second.epoch(), 1u);
  EXPECT_EQ(drain(second).size(), 10u);
}

// The program resets, and then its loader does.
TEST(ResumedSamplers, GoOnAfterSeveralResets) {
  const SamplerOptions options{.num_replicas = 1, .rank = 0};
  DistributedRandomSampler first(10, options), second(10, options);
  first.next(4);
  hand_over(first, second);
  EXPECT_THAT(error_of([&] { second.reset(6); }),
              testing::AllOf(HasSubstr("among 10 samples"), HasSubstr("reset() gives 6")));
  for (int i = 0; i < 3; ++i) second.reset(10);
  EXPECT_EQ(second.position().drawn, 4u);
  EXPECT_EQ(drain(second), drain(first));
  second.reset(6);
  EXPECT_EQ(second.epoch(), 1u);
  EXPECT_EQ(drain(second).size(), 6u);

  const StreamOptions records{.num_replicas = 1, .rank = 0, .records = 10};
  DistributedStreamSampler read(records), rest(records);
  read.next(4);
  hand_over(read, rest);
  EXPECT_THAT(error_of([&] { rest.reset(6); }), HasSubstr("reset() with 6 records"));
  for (int i = 0; i < 3; ++i) rest.reset(10);
  EXPECT_EQ(rest.next(3)->first, 4u);
  EXPECT_EQ(rest.next(9)->count, 3u);
  rest.reset(6);
  EXPECT_EQ(rest.next(9)->count, 6u);

  hand_over(first, second = DistributedRandomSampler(10, options));
  second.set_epoch(2);  // leaves the place
  second.reset(6);
  EXPECT_EQ(drain(second).size(), 6u);
}

TEST(ResumedSamplers, AtTheEndOfAnEpochSetEpochLeavesOutTheEmptyOne) {
  const SamplerOptions options{.num_replicas = 1, .rank = 0};
  for (const bool chooses : {false, true}) {
    DistributedRandomSampler first(10, options), second(10, options);
    drain(first);
    hand_over(first, second);
    std::vector<size_t> drawn;
    for (size_t epoch = 1; epoch < 3; ++epoch) {
      if (chooses) second.set_epoch(epoch);
      second.reset();
      drawn.push_back(drain(second).size());
      EXPECT_EQ(second.epoch(), chooses ? epoch : epoch - 1);
    }
    EXPECT_EQ(drawn, (std::vector<size_t>{chooses ? 10u : 0u, 10}));
  }
}

TEST(ResumedSamplers, SayWhatDoesNotFit) {
  const auto parts_of = [](std::vector<const ShardedSampler*> samplers) {
    std::vector<torch::serialize::InputArchive> parts;
    for (const ShardedSampler* sampler : samplers) parts.push_back(saved(*sampler));
    return parts;
  };
  DistributedRandomSampler a(40, {.num_replicas = 2, .rank = 0});
  DistributedRandomSampler b(40, {.num_replicas = 2, .rank = 1});
  DistributedRandomSampler other(40, {.num_replicas = 1, .rank = 0});
  auto one = parts_of({&a});
  EXPECT_THAT(error_of([&] { other.load_resharded(one); }),
              HasSubstr("saved by 2 ranks and needs the archives of all, but got 1"));
  b.set_epoch(3);
  b.reset();
  auto apart = parts_of({&a, &b});
  EXPECT_THAT(error_of([&] { other.load_resharded(apart); }),
              HasSubstr("rank 0 was in epoch 0, rank 1 in epoch 3"));
  DistributedRandomSampler ordered(40, {.num_replicas = 2, .rank = 0, .shuffle = false});
  EXPECT_THAT(error_of([&] { hand_over(a, ordered); }), HasSubstr("saved with shuffle = true"));
  DistributedSequentialSampler blocks(40, {.num_replicas = 2, .rank = 0});
  EXPECT_THAT(error_of([&] { hand_over(ordered, blocks); }), HasSubstr("of another kind"));
  const SamplerOptions alone{.num_replicas = 1, .rank = 0, .uneven = true};
  BalancedBatchSampler pairs({1, 2, 3, 4}, 2, alone), triples({1, 2, 3, 4}, 3, alone);
  BalancedBatchSampler dearer({1, 2, 3, 5}, 2, alone);
  BalancedBatchSampler from_pools({1, 2, 3, 4}, 2, alone, 3);
  BalancedBatchSampler repeating({1, 2, 3, 4}, 2, {.num_replicas = 1, .rank = 0});
  EXPECT_THAT(error_of([&] { hand_over(pairs, dearer); }), HasSubstr("other costs"));
  EXPECT_THAT(error_of([&] { hand_over(pairs, from_pools); }), HasSubstr("pool_steps"));
  EXPECT_THAT(error_of([&] { hand_over(pairs, repeating); }), HasSubstr("of another kind"));
  EXPECT_THAT(error_of([&] { hand_over(pairs, triples); }),
              HasSubstr("batches of 2, but here they"));
  std::stringstream stream;
  torch::serialize::OutputArchive out;
  out.write("x", c10::IValue(1));
  out.save_to(stream);
  torch::serialize::InputArchive foreign;
  foreign.load_from(stream);
  EXPECT_THAT(error_of([&] { a.load(foreign); }), HasSubstr("was not saved by a sampler"));
  EXPECT_THAT(error_of([] {
                DistributedRandomSampler(
                    9, {.num_replicas = 1, .rank = 0, .drop_last = true, .uneven = true});
              }),
              HasSubstr("drop_last and uneven are both set"));
}

// In as many epochs as it takes, each sample is left out once; without shuffling too.
TEST(DropLast, NoneIsLeftOutAgainBeforeAllOthers) {
  for (const bool shuffle : {true, false}) {
    for (const bool batches : {true, false}) {
      std::map<size_t, int> left_out;
      // 35 samples, 3 ranks: 2 are left out of an epoch; with batches of 5, 5 are.
      const size_t missing = batches ? 5 : 2;
      for (size_t epoch = 0; epoch < 35; ++epoch) {
        std::set<size_t> seen;
        for (size_t r = 0; r < 3; ++r) {
          const SamplerOptions options{
              .num_replicas = 3, .rank = r, .shuffle = shuffle, .drop_last = true};
          std::unique_ptr<ShardedSampler> sampler =
              std::make_unique<DistributedRandomSampler>(35, options);
          if (batches) sampler = std::make_unique<DistributedBatchSampler>(35, 5, options);
          sampler->set_epoch(epoch);
          sampler->reset();
          for (const size_t i : drain(*sampler)) seen.insert(i);
        }
        ASSERT_EQ(seen.size(), 35 - missing);
        for (size_t i = 0; i < 35; ++i) left_out[i] += seen.contains(i) ? 0 : 1;
        for (size_t i = 0; i < 35; ++i) {
          for (size_t j = 0; j < 35; ++j) ASSERT_LE(left_out[i], left_out[j] + 1);
        }
      }
      for (const auto& [sample, times] : left_out) EXPECT_EQ(times, static_cast<int>(missing));
    }
  }
}

TEST(BatchSampler, GivesItsOwnBatchesToALoader) {
  struct Numbers : torch::data::datasets::BatchDataset<Numbers, std::vector<size_t>> {
    std::vector<size_t> get_batch(c10::ArrayRef<size_t> indices) override { return indices.vec(); }
    std::optional<size_t> size() const override { return 50; }
  };
  const SamplerOptions options{.num_replicas = 2, .rank = 0, .drop_last = true};
  DistributedBatchSampler sampler(50, 8, options);
  auto loader = torch::data::make_data_loader(Numbers(), sampler, torch::data::DataLoaderOptions());
  std::vector<size_t> sizes;
  for (auto& batch : *loader) sizes.push_back(batch.size());
  EXPECT_EQ(sizes, (std::vector<size_t>{8, 8, 8}));
  EXPECT_THAT(error_of([] { DistributedBatchSampler(9, 0, {.num_replicas = 1, .rank = 0}); }),
              HasSubstr("batch size can't be 0"));
}

// The bound of the header, for costs as lengths of texts are: many short ones, a few long ones.
TEST(BalancedSampler, RanksDifferByAtMostOneRoundsSpread) {
  constexpr size_t kRanks = 4;
  constexpr size_t kBatch = 8;
  const size_t samples = kRanks * kBatch * 12;
  const auto cost = [&](bool few_dear, size_t i) {
    const double place = static_cast<double>(i * 7919 % samples) / static_cast<double>(samples);
    return std::floor(few_dear ? 5 + 500 / (1 + place * 140) : 10 + 90 * place * place);
  };
  for (const auto& [few_dear, pool] :
       std::vector<std::pair<bool, size_t>>{{true, 1}, {true, 4}, {false, 1}, {false, 4}}) {
    std::vector<double> costs(samples);
    for (size_t i = 0; i < samples; ++i) costs[i] = cost(few_dear, i);
    double balanced_wait = 0;
    double plain_wait = 0;
    std::vector<std::vector<size_t>> mine;
    std::vector<std::vector<size_t>> plain;
    for (size_t r = 0; r < kRanks; ++r) {
      const SamplerOptions options{.num_replicas = kRanks, .rank = r, .seed = 3};
      BalancedBatchSampler sampler(costs, kBatch, options, pool);
      mine.push_back(drain(sampler, kBatch));
      DistributedRandomSampler other(costs.size(), options);
      plain.push_back(drain(other, kBatch));
    }
    std::set<size_t> seen;
    const auto spread = [&](const auto& drawn, size_t step, std::vector<double>* in_step) {
      std::vector<double> sums(kRanks, 0.0);
      for (size_t r = 0; r < kRanks; ++r) {
        for (size_t i = step * kBatch; i < (step + 1) * kBatch; ++i) {
          sums[r] += costs[drawn[r][i]];
          if (in_step) in_step->push_back(costs[drawn[r][i]]);
          if (in_step) seen.insert(drawn[r][i]);
        }
      }
      return *std::max_element(sums.begin(), sums.end()) -
             *std::min_element(sums.begin(), sums.end());
    };
    for (size_t step = 0; step < 12; ++step) {
      std::vector<double> sorted;
      const double difference = spread(mine, step, &sorted);
      std::sort(sorted.begin(), sorted.end());
      double bound = 0;
      for (size_t i = 0; i + kRanks <= sorted.size(); i += kRanks) {
        bound = std::max(bound, sorted[i + kRanks - 1] - sorted[i]);
      }
      EXPECT_LE(difference, bound) << "step " << step;
      balanced_wait += difference;
      plain_wait += spread(plain, step, nullptr);
    }
    EXPECT_EQ(seen.size(), costs.size()) << "each sample once";
    // Where one sample is dearer than all others of its step, nothing can balance it.
    EXPECT_LT(balanced_wait, few_dear ? plain_wait : plain_wait / 4);
  }
}

TEST(BalancedSampler, RefusesCostsThatAreNone) {
  const SamplerOptions options{.num_replicas = 1, .rank = 0};
  EXPECT_THAT(error_of([&] {
                BalancedBatchSampler({1, NAN}, 1, options);
              }),
              HasSubstr("the cost of sample 1 is nan"));
  EXPECT_THAT(error_of([&] { BalancedBatchSampler({1, -2}, 1, options); }), HasSubstr("is -2"));
  EXPECT_THAT(error_of([&] { BalancedBatchSampler({1}, 1, options, 0); }),
              HasSubstr("pool can't be 0"));
  BalancedBatchSampler sampler({1, 2}, 1, options);
  EXPECT_THAT(error_of([&] { sampler.reset(3); }), HasSubstr("another size"));
}

// Each record of the stream comes once over the ranks; also where another number of ranks goes on.
TEST(StreamSampler, EachRecordOnceAlsoAtAnotherNumberOfRanks) {
  using Job = std::vector<DistributedStreamSampler>;
  const auto make = [](size_t ranks) {
    Job job;
    for (size_t r = 0; r < ranks; ++r) {
      job.emplace_back(
          StreamOptions{.num_replicas = ranks, .rank = r, .records = 61, .drop_last = false});
    }
    return job;
  };
  std::vector<size_t> read;
  const auto step = [&](Job& job) {
    bool any = false;
    for (auto& sampler : job) {
      const auto batch = sampler.next(4);
      if (!batch) continue;
      any = true;
      EXPECT_LE(batch->size(), 4u);
      for (size_t i = 0; i < batch->count; ++i) read.push_back(batch->first + i * batch->stride);
    }
    return any;
  };
  Job three = make(3);
  step(three);
  step(three);
  Job two = make(2);
  for (auto& sampler : two) {
    hand_over(three.back(), sampler);
    sampler.reset();
  }
  while (step(two)) {
  }
  std::sort(read.begin(), read.end());
  ASSERT_EQ(read.size(), 61u);
  for (size_t i = 0; i < 61; ++i) EXPECT_EQ(read[i], i);
  two.front().reset();
  EXPECT_EQ(two.front().next(4)->first, 0u) << "the next epoch begins at the first record";
  EXPECT_EQ(two.front().epoch(), 1u);
}

TEST(StreamSampler, GoesThroughALoader) {
  struct Stream : torch::data::datasets::BatchDataset<Stream, std::vector<size_t>, StreamBatch> {
    std::vector<size_t> get_batch(StreamBatch batch) override {
      std::vector<size_t> records;
      for (size_t i = 0; i < batch.count; ++i) records.push_back(batch.first + i * batch.stride);
      return records;
    }
    std::optional<size_t> size() const override { return std::nullopt; }
  };
  auto loader = torch::data::make_data_loader(
      Stream(),
      DistributedStreamSampler({.num_replicas = 2, .rank = 1, .records = 11, .drop_last = true}),
      torch::data::DataLoaderOptions(3));
  std::vector<size_t> records;
  for (auto& batch : *loader) records.insert(records.end(), batch.begin(), batch.end());
  EXPECT_EQ(records, (std::vector<size_t>{1, 3, 5, 7, 9}));
}

}  // namespace
}  // namespace horon::resumed_samplers_test
