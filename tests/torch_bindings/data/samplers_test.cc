// The samplers' promises, for many sizes and rank counts, and through LibTorch's loader. Needs no
// session.
#include "horon/torch_bindings/data/samplers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <thread>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/data.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/data/sampler_support.h"
#include "horon/torch_bindings/data/prefetch_loader.h"
#include "horon/torch_bindings/data/stream_sampler.h"

namespace horon::samplers_test {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::drain;
using testing_support::hand_over;

std::vector<size_t> epoch_of(size_t count, SamplerOptions options, size_t epoch) {
  DistributedRandomSampler sampler(count, options);
  sampler.set_epoch(epoch);
  sampler.reset();
  std::vector<size_t> drawn = drain(sampler);
  EXPECT_EQ(drawn.size(), sampler.samples_per_epoch());
  return drawn;
}

TEST(RandomSampler, EveryEpochHasAllSamplesInEqualShares) {
  for (const size_t count : {0, 1, 2, 7, 10, 64, 101}) {
    for (const size_t ranks : {1, 2, 3, 5, 16}) {
      for (const bool drop_last : {false, true}) {
        std::map<size_t, size_t> seen;
        const size_t share = drop_last ? count / ranks : (count + ranks - 1) / ranks;
        for (size_t r = 0; r < ranks; ++r) {
          const auto mine =
              epoch_of(count, {.num_replicas = ranks, .rank = r, .drop_last = drop_last}, 3);
          EXPECT_EQ(mine.size(), share);
          for (const size_t i : mine) ++seen[i];
        }
        EXPECT_EQ(seen.size(), drop_last ? share * ranks : count);
        for (const auto& [index, times] : seen) {
          EXPECT_LT(index, count);
          EXPECT_LE(times, drop_last ? 1 : 1 + ranks / count + 1);
        }
      }
    }
  }
}

TEST(RandomSampler, EpochsAndSeedsDifferAndRepeat) {
  const SamplerOptions options{.num_replicas = 2, .rank = 1, .seed = 9};
  SamplerOptions other = options;
  other.seed = 10;
  EXPECT_EQ(epoch_of(100, options, 4), epoch_of(100, options, 4));
  EXPECT_NE(epoch_of(100, options, 4), epoch_of(100, options, 5));
  EXPECT_NE(epoch_of(100, options, 4), epoch_of(100, other, 4));
  // Neighbouring seeds and epochs must not be the same stream, moved by one.
  EXPECT_NE(epoch_of(100, options, 5), epoch_of(100, other, 4));
  EXPECT_NE(epoch_of(100, options, 4), epoch_of(100, other, 5));
}

// A fixed order on every machine and in every version: what was trained can be repeated.
TEST(RandomSampler, PermutationIsFixed) {
  EXPECT_EQ(epoch_of(8, {.num_replicas = 1, .rank = 0, .seed = 1}, 0),
            (std::vector<size_t>{0, 5, 2, 7, 3, 4, 1, 6}));
}

TEST(RandomSampler, EachSampleGetsEachPlaceAlikeOften) {
  std::map<size_t, int> first;
  for (size_t epoch = 0; epoch < 5000; ++epoch) {
    ++first[epoch_of(5, {.num_replicas = 1, .rank = 0}, epoch).front()];
  }
  // 1,000 each, standard deviation 28.
  for (const auto& [index, times] : first) EXPECT_NEAR(times, 1000, 150) << index;
}

TEST(RandomSampler, DroppedSamplesChangeWithTheEpoch) {
  std::set<size_t> dropped;
  for (size_t epoch = 0; epoch < 200; ++epoch) {
    std::set<size_t> seen;
    for (size_t r = 0; r < 3; ++r) {
      const auto mine = epoch_of(10, {.num_replicas = 3, .rank = r, .drop_last = true}, epoch);
      seen.insert(mine.begin(), mine.end());
    }
    for (size_t i = 0; i < 10; ++i) {
      if (!seen.contains(i)) dropped.insert(i);
    }
  }
  EXPECT_EQ(dropped.size(), 10u);
}

TEST(RandomSampler, WithoutShuffleInOrder) {
  EXPECT_EQ(epoch_of(7, {.num_replicas = 3, .rank = 1, .shuffle = false}, 2),
            (std::vector<size_t>{1, 4, 0}));
}

TEST(RandomSampler, WithoutShuffleTheFirstEpochLeavesOutTheLastSamples) {
  const SamplerOptions options{.num_replicas = 3, .rank = 2, .shuffle = false, .drop_last = true};
  EXPECT_EQ(epoch_of(11, options, 0), (std::vector<size_t>{2, 5, 8}));
  EXPECT_EQ(epoch_of(11, options, 1), (std::vector<size_t>{2, 5, 10}));
}

TEST(RandomSampler, GoesThroughALoader) {
  struct Numbers : torch::data::datasets::BatchDataset<Numbers, std::vector<size_t>> {
    std::vector<size_t> get_batch(c10::ArrayRef<size_t> indices) override { return indices.vec(); }
    std::optional<size_t> size() const override { return 50; }
  };
  for (const size_t workers : {0, 2}) {
    const SamplerOptions options{.num_replicas = 2, .rank = 0, .seed = 4};
    DistributedRandomSampler sampler(50, options);
    auto loader = torch::data::make_data_loader(
        Numbers(), sampler,
        torch::data::DataLoaderOptions(8).workers(workers).enforce_ordering(true));
    const auto drawn = [&] {
      std::vector<size_t> all;
      for (auto& batch : *loader) all.insert(all.end(), batch.begin(), batch.end());
      return all;
    };
    EXPECT_EQ(drawn(), epoch_of(50, options, 0));
    EXPECT_EQ(drawn(), epoch_of(50, options, 1)) << "each begin() takes the next epoch";
    sampler.set_epoch(7);
    EXPECT_EQ(drawn(), epoch_of(50, options, 7)) << "set_epoch() reaches the loader's copy";
    EXPECT_EQ(sampler.epoch(), 7u);
    EXPECT_EQ(drawn(), epoch_of(50, options, 8));
  }
}

TEST(RandomSampler, LeavesTheGlobalGeneratorAlone) {
  torch::manual_seed(5);
  const auto want = torch::rand({3});
  torch::manual_seed(5);
  epoch_of(1000, {.num_replicas = 1, .rank = 0}, 1);
  EXPECT_TRUE(torch::equal(torch::rand({3}), want));
}

TEST(RandomSampler, SavedInMidEpochGoesOnThere) {
  const SamplerOptions options{.num_replicas = 2, .rank = 1};
  DistributedRandomSampler first(41, options);
  first.set_epoch(6);
  first.reset();
  first.next(9);
  DistributedRandomSampler second(41, options);
  hand_over(first, second);
  // What a training loop does when it goes on: say the epoch, begin.
  second.set_epoch(6);
  second.reset();
  EXPECT_EQ(drain(second), drain(first));
  second.reset();
  EXPECT_EQ(second.epoch(), 7u);
  DistributedRandomSampler other(42, options);
  EXPECT_THAT(error_of([&] { hand_over(first, other); }), HasSubstr("41 samples"));
}

TEST(RandomSampler, ResetTakesANewSize) {
  DistributedRandomSampler sampler(10, {.num_replicas = 2, .rank = 0});
  sampler.reset(30);
  EXPECT_EQ(drain(sampler).size(), 15u);
}

TEST(RandomSampler, RefusesRanksThatAreNone) {
  EXPECT_THAT(error_of([] { DistributedRandomSampler(10, {.num_replicas = 2, .rank = 2}); }),
              StartsWith("invalid argument"));
  EXPECT_THAT(error_of([] { DistributedSequentialSampler(10, {.num_replicas = 0, .rank = 0}); }),
              AllOf(StartsWith("invalid argument"), HasSubstr("num_replicas can't be 0")));
  const auto outside = static_cast<size_t>(-1);  // ProcessSet::rank() of ranks outside the set
  EXPECT_THAT(error_of([=] { DistributedRandomSampler(10, {.num_replicas = 2, .rank = outside}); }),
              HasSubstr("sampler: this rank is not in the process set"));
  EXPECT_THAT(error_of([=] { DistributedStreamSampler({.num_replicas = 2, .rank = outside}); }),
              HasSubstr("stream sampler: this rank is not in the process set"));
}

TEST(SequentialSampler, EachSampleExactlyOnceInOrder) {
  for (const size_t count : {0, 1, 2, 7, 10, 101, 10000}) {
    for (const size_t ranks : {1, 2, 3, 5, 16}) {
      std::vector<size_t> all;
      for (size_t r = 0; r < ranks; ++r) {
        DistributedSequentialSampler sampler(count, {.num_replicas = ranks, .rank = r});
        const auto mine = drain(sampler);
        EXPECT_EQ(mine.size(), sampler.samples_per_epoch());
        EXPECT_LE(mine.size(), count / ranks + 1);
        sampler.reset();
        EXPECT_EQ(drain(sampler), mine);
        all.insert(all.end(), mine.begin(), mine.end());
      }
      ASSERT_EQ(all.size(), count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(all[i], i);
    }
  }
}

TEST(SequentialSampler, SavedInMidEpochGoesOnThere) {
  DistributedSequentialSampler first(20, {.num_replicas = 2, .rank = 1}), second = first;
  first.next(3);
  DistributedSequentialSampler third(20, {.num_replicas = 2, .rank = 1});
  hand_over(first, third);
  third.reset();
  EXPECT_EQ(drain(third), (std::vector<size_t>{13, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(drain(second).front(), 13u) << "a copy shares the position";
}

// What each rank draws of an epoch that is not shuffled and whose last step is incomplete.
std::vector<std::vector<size_t>> balanced(const std::vector<double>& costs, size_t ranks,
                                          size_t batch, size_t pool_steps = 1) {
  std::vector<std::vector<size_t>> drawn;
  for (size_t r = 0; r < ranks; ++r) {
    const SamplerOptions options{
        .num_replicas = ranks, .rank = r, .shuffle = false, .uneven = true};
    BalancedBatchSampler sampler(costs, batch, options, pool_steps);
    drawn.push_back(drain(sampler));
  }
  return drawn;
}

TEST(BalancedSampler, TheIncompleteStepOfAPoolComesLast) {
  // It holds the dearest samples, which are the first ones.
  for (const auto& drawn : balanced({10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 2, 2, 3)) {
    ASSERT_EQ(drawn.size(), 5u);
    EXPECT_LT(drawn.back(), 2u);
    EXPECT_LT(drawn.front(), 6u) << "the step with the first sample of the others comes first";
  }
}

TEST(BalancedSampler, AnIncompleteStepIsSharedOutAsEvenlyAsItCanBe) {
  std::vector<size_t> sizes;
  for (const auto& drawn : balanced({100, 1, 1, 1, 1, 1, 1, 1, 1}, 4, 3)) {
    sizes.push_back(drawn.size());
  }
  EXPECT_THAT(sizes, testing::UnorderedElementsAre(3, 2, 2, 2));
  const std::vector<double> costs = {10, 9, 5, 1, 1};
  std::vector<double> sums;
  for (const auto& drawn : balanced(costs, 2, 3)) {
    sums.push_back(0);
    for (const size_t sample : drawn) sums.back() += costs[sample];
  }
  EXPECT_LE(std::abs(sums[0] - sums[1]), 5 - 1) << "the largest spread of one round";
}

// A position that the sampler has left is not gone back to.
TEST(RandomSampler, PutsBackOnlyWhatIsOfItsEpoch) {
  DistributedRandomSampler sampler(10, {.num_replicas = 1, .rank = 0});
  (void)sampler.next(3);
  const SamplerPosition before = sampler.position();
  sampler.reset();
  sampler.put_back(before);
  EXPECT_EQ(sampler.position().epoch, 1u);
  EXPECT_EQ(sampler.position().drawn, 0u);
}

struct Numbers {
  static std::vector<size_t> get_batch(const std::vector<size_t>& indices) { return indices; }
};

// What threads have read ahead and nobody has taken moves no rank on by an epoch: whether they have
// read already differs from rank to rank.
TEST(PrefetchLoader, BegunAnewBeforeABatchWasTakenIsInTheSameEpoch) {
  const SamplerOptions options{.num_replicas = 1, .rank = 0};
  DistributedRandomSampler sampler(50, options);
  PrefetchLoader loader(Numbers{}, sampler, {.batch_size = 5, .ahead = 3});
  const auto drawn_after_a_start = [&](const auto& meanwhile) {
    const size_t place = sampler.position().drawn % 50;
    loader.start();
    while (sampler.position().drawn == place) std::this_thread::yield();
    meanwhile();
    std::vector<size_t> got;
    for (const auto& batch : loader) got.insert(got.end(), batch.begin(), batch.end());
    return got;
  };
  const auto nothing = [] {};
  EXPECT_EQ(drawn_after_a_start(nothing), epoch_of(50, options, 0));
  EXPECT_EQ(drawn_after_a_start(nothing), epoch_of(50, options, 1));
  EXPECT_EQ(drawn_after_a_start([&] { sampler.set_epoch(7); }), epoch_of(50, options, 7));
  DistributedRandomSampler before(50, options);
  (void)before.next(15);
  hand_over(before, loader);
  std::vector<size_t> rest = epoch_of(50, options, 0);
  rest.erase(rest.begin(), rest.begin() + 15);
  EXPECT_EQ(drawn_after_a_start(nothing), rest);

  DistributedRandomSampler shared(50, options);
  {
    PrefetchLoader left(Numbers{}, shared, {.batch_size = 5});
    left.start();
    while (shared.position().drawn == 0) std::this_thread::yield();
  }
  PrefetchLoader another(Numbers{}, shared, {.batch_size = 50});
  for (const auto& batch : another) EXPECT_EQ(batch, epoch_of(50, options, 0));

  DistributedStreamSampler records({.num_replicas = 1, .rank = 0, .records = 50});
  struct Firsts {
    static size_t get_batch(const StreamBatch& batch) { return batch.first; }
  };
  PrefetchLoader stream(Firsts{}, records, {.batch_size = 25});
  stream.start();
  while (records.position().drawn == 0) std::this_thread::yield();
  stream.start();
  EXPECT_EQ(stream.next(), 0u);
  EXPECT_EQ(records.epoch(), 0u);
  stream.start();
  while (records.position().drawn == 0) std::this_thread::yield();
  records.set_epoch(4);
  EXPECT_EQ((stream.start(), records.epoch()), 4u);
}

struct CountsCores {
  static int get_batch(const std::vector<size_t>& /*indices*/) { return at::get_num_threads(); }
};

TEST(PrefetchLoader, AThreadReadsWithOneCore) {
  if (at::get_parallel_info().find("backend: OpenMP") == std::string::npos) {
    GTEST_SKIP() << "LibTorch's threads are not OpenMP's";
  }
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  PrefetchLoader loader(CountsCores{}, DistributedRandomSampler(8, {.num_replicas = 1, .rank = 0}),
                        {.threads = 2});
  for (const int epoch : {0, 1}) {
    for (const int cores : loader) EXPECT_EQ(cores, 1) << epoch;
  }
  EXPECT_EQ(at::get_num_threads(), 3) << "of the thread that trains";
  at::set_num_threads(before);
}

TEST(PrefetchLoader, SavesAStreamWhereItWasHandedOut) {
  struct Firsts {
    static size_t get_batch(const StreamBatch& batch) { return batch.first; }
  };
  const StreamOptions options{.num_replicas = 1, .rank = 0, .records = 50};
  DistributedStreamSampler records(options), rest(options);
  PrefetchLoader loader(Firsts{}, records, {.batch_size = 5, .ahead = 3});
  loader.start();
  EXPECT_EQ(loader.next(), 0u);
  while (records.position().drawn < 15) std::this_thread::yield();
  hand_over(loader, rest);
  EXPECT_EQ(rest.next(5)->first, 5u);
}

}  // namespace
}  // namespace horon::samplers_test
