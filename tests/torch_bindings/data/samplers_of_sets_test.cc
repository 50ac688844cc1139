// Samplers of process sets: each set sees all samples.
#include <gmock/gmock.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/data/sampler_support.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/data/samplers.h"
#include "horon/torch_bindings/data/stream_sampler.h"

namespace horon::samplers_of_sets_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::drain;
using testing_support::error_of;
using testing_support::kInvalid;

constexpr size_t kSamples = 24;  // of which every set of up to 4 ranks gets equal shares

class SamplersOfSets : public testing::Test {
 protected:
  void TearDown() override {
    for (const ProcessSet& set : process_sets()) {
      if (!set.is_world()) remove_process_set(set);
    }
  }

  // What the ranks of this rank's set have drawn together: each sample once.
  void expect_all(const std::vector<size_t>& own) const {
    EXPECT_EQ(own.size(), kSamples / static_cast<size_t>(set_.size()));
    at::Tensor times = at::zeros({kSamples}, at::kLong);
    for (const size_t one : own) times[static_cast<int64_t>(one)] += 1;
    times = allreduce(times, {.op = ReduceOp::Sum, .process_set = set_});
    EXPECT_TRUE(times.eq(1).all().item<bool>()) << times;
  }
  // The even ranks, or the odd ones: sets of one rank, of two, of all.
  const ProcessSet set_ = add_even_odd_process_set();
};

TEST_F(SamplersOfSets, EachSetSeesAllSamples) {
  const SamplerOptions options{.seed = 3, .process_set = set_};
  DistributedRandomSampler random(kSamples, options);
  expect_all(drain(random));
  DistributedSequentialSampler sequential(kSamples, options);
  expect_all(drain(sequential));
  DistributedBatchSampler batches(kSamples, 2, options);
  expect_all(drain(batches));
  std::vector<double> costs(kSamples);
  for (size_t i = 0; i < kSamples; ++i) costs[i] = static_cast<double>(i % 5);
  BalancedBatchSampler balanced(costs, 2, options);
  expect_all(drain(balanced));
  DistributedStreamSampler stream({.records = kSamples, .process_set = set_});
  std::vector<size_t> records;
  while (const auto batch = stream.next(5)) {
    for (size_t i = 0; i < batch->count; ++i) records.push_back(batch->first + i * batch->stride);
  }
  expect_all(records);
}

TEST_F(SamplersOfSets, AreTheShardsThatNumbersSay) {
  DistributedRandomSampler of_set(kSamples, {.seed = 3, .process_set = set_});
  DistributedRandomSampler by_numbers(kSamples, {.num_replicas = static_cast<size_t>(set_.size()),
                                                 .rank = static_cast<size_t>(set_.rank()),
                                                 .seed = 3});
  EXPECT_EQ(drain(of_set), drain(by_numbers));
  DistributedRandomSampler of_all(kSamples, {.seed = 3});
  DistributedRandomSampler of_world(kSamples, {.seed = 3, .process_set = process_sets().front()});
  EXPECT_EQ(drain(of_all), drain(of_world));
}

TEST_F(SamplersOfSets, WrongUseIsRefused) {
  const auto both =
      AllOf(StartsWith(kInvalid), HasSubstr("num_replicas and rank come from process_set"));
  EXPECT_THAT(error_of([&] {
                const DistributedRandomSampler none(kSamples,
                                                    {.num_replicas = 2, .process_set = set_});
              }),
              both);
  EXPECT_THAT(
      error_of([&] { const DistributedStreamSampler none({.rank = 0, .process_set = set_}); }),
      both);
  const ProcessSet first = add_process_set({0});
  if (rank() > 0) {
    const auto outside = AllOf(StartsWith(kInvalid), HasSubstr("not in the process set"));
    EXPECT_THAT(
        error_of([&] { const DistributedRandomSampler none(kSamples, {.process_set = first}); }),
        outside);
    EXPECT_THAT(error_of([&] { const DistributedStreamSampler none({.process_set = first}); }),
                outside);
  } else {
    DistributedRandomSampler alone(kSamples, {.process_set = first});
    EXPECT_EQ(drain(alone).size(), kSamples);
  }
}

}  // namespace
}  // namespace horon::samplers_of_sets_test
