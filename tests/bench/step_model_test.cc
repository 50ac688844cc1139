#include "horon/bench/step_model.h"

#include <gtest/gtest.h>

#include "horon/core/base/error.h"

namespace horon::bench {
namespace {

constexpr Buckets kOneMegabyte{1e6, 1e6};

TrainedModel model_of(double megabytes, double alone_ms) {
  TrainedModel model;
  model.stages = {{megabytes * 1e6, 1}};
  model.alone_ms = alone_ms;
  model.forward_share = 0.3;
  model.optimizer_share = 0.1;
  return model;
}

TEST(FitCost, FindsTheLineThatSamplesLieOn) {
  std::vector<Sample> samples;
  for (const double bytes : {1e3, 1e5, 1e6, 2e7}) samples.push_back({bytes, 40 + bytes / 110});
  const AllreduceCost cost = fit_cost(samples);
  EXPECT_NEAR(cost.latency_us, 40, 1e-6);
  EXPECT_NEAR(cost.bytes_per_us, 110, 1e-6);
}

TEST(FitCost, NothingIsNegative) {
  EXPECT_EQ(fit_cost({{1e3, 1}, {1e6, 2000}}).latency_us, 0);
  const AllreduceCost slower_when_small = fit_cost({{1e3, 50}, {1e6, 40}});
  EXPECT_GT(slower_when_small.latency_us, 0);
  EXPECT_GT(slower_when_small.bytes_per_us, 0);
}

TEST(StagesIn, TakesBytesAndShares) {
  const auto one = stages_in("44.7M");
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one.front().bytes, 44.7e6);
  EXPECT_EQ(one.front().share, 1);
  const auto two = stages_in("3M:1,1KiB:3");
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].share, 0.25);
  EXPECT_EQ(two[1].bytes, 1024);
  EXPECT_EQ(two[1].share, 0.75);
  for (const char* wrong : {"", "x", "3M:", "3M:0", "3M:-1", "0", "-3M", "3M:1,,2M:1", "3M:nan"}) {
    EXPECT_THROW((void)stages_in(wrong), Error) << wrong;
  }
}

TEST(PredictStep, AFastNetworkCostsNothing) {
  const StepPrediction step = predict_step(model_of(40, 100), {0, 1e9, 0}, kOneMegabyte);
  EXPECT_NEAR(step.step_ms, 100, 0.01);
  EXPECT_EQ(step.buckets, 40);
  EXPECT_NEAR(step.exposed_ms, 0, 0.01);
}

// The wire is busy from the first bucket to the last.
TEST(PredictStep, ASlowNetworkIsWhatTakesTime) {
  // 40 MB at 100 MB/s; the first bucket is full after 30 + 60 / 40 ms.
  const StepPrediction step = predict_step(model_of(40, 100), {500, 100, 0}, kOneMegabyte);
  EXPECT_NEAR(step.step_ms, 30 + 1.5 + 400 + 0.5 + 10, 0.01);
  EXPECT_NEAR(step.exposed_ms, 400 + 0.5 + 1.5 - 60, 0.01);
  EXPECT_NEAR(step.communication_ms, 400 + 40 * 0.5, 0.01);
}

// Where backward makes gradients as fast as they travel, the last bucket is what is left.
TEST(PredictStep, TheLastBucketIsNotHidden) {
  const StepPrediction step = predict_step(model_of(40, 100), {0, 40e6 / 60e3, 0}, kOneMegabyte);
  EXPECT_NEAR(step.exposed_ms, 1.5, 0.01);
  const Buckets small_first{1e5, 1e6};
  EXPECT_EQ(predict_step(model_of(40, 100), {0, 1e9, 0}, small_first).buckets, 41);
}

TEST(PredictStep, WhatComesEarlyIsHidden) {
  TrainedModel early = model_of(40, 100);
  early.stages = {{39e6, 0.1}, {1e6, 0.9}};
  TrainedModel late = model_of(40, 100);
  late.stages = {{1e6, 0.9}, {39e6, 0.1}};
  const AllreduceCost cost{0, 1000, 0};
  EXPECT_LT(predict_step(early, cost, kOneMegabyte).exposed_ms, 1.1);
  EXPECT_GT(predict_step(late, cost, kOneMegabyte).exposed_ms, 30);
}

// Communication that takes cycles makes backward longer, by what travels meanwhile.
TEST(PredictStep, CommunicationTakesFromTheComputation) {
  const AllreduceCost cost{0, 1e6, 1e-3};
  const StepPrediction step = predict_step(model_of(40, 100), cost, kOneMegabyte);
  EXPECT_NEAR(step.compute_ms, 100 + 40, 1.1);
  // What travels after backward takes nothing from it.
  const AllreduceCost slow{0, 10, 1e-3};
  EXPECT_NEAR(predict_step(model_of(40, 100), slow, kOneMegabyte).compute_ms, 100 + 0.6, 0.1);
}

TEST(CostBetweenHosts, FollowsTheNetwork) {
  ops::MachineConstants constants;
  constants.message_us = 500;
  constants.wire_bytes_per_us = 120;
  const AllreduceCost two = cost_between_hosts(2, 4 << 20, constants, 0.25);
  EXPECT_NEAR(two.latency_us, 500 + 2 * 500, 1e-6);
  EXPECT_NEAR(two.bytes_per_us, 120, 1e-6);
  EXPECT_EQ(two.compute_us_per_byte, 0.25);
  // Two rounds: three quarters of the bytes go, and as many come back.
  const AllreduceCost four = cost_between_hosts(4, 4 << 20, constants, 0);
  EXPECT_NEAR(four.latency_us, 1000 + 2 * 500, 1e-6);
  EXPECT_NEAR(four.bytes_per_us, 80, 1e-6);
}

// One up and one down, however short the bucket is; they carry none of its bytes.
TEST(CostBetweenHosts, ABucketStartsByTwoMessages) {
  ops::MachineConstants near;
  near.message_us = 20;
  ops::MachineConstants far = near;
  far.message_us = 520;
  for (const int64_t bytes : {4, 4 << 20}) {
    const AllreduceCost quick = cost_between_hosts(2, bytes, near, 0);
    const AllreduceCost slow = cost_between_hosts(2, bytes, far, 0);
    EXPECT_NEAR(quick.latency_us, 3 * 20, 1e-6) << bytes;
    EXPECT_NEAR(slow.latency_us, 3 * 520, 1e-6) << bytes;
    EXPECT_NEAR(slow.bytes_per_us, quick.bytes_per_us, 1e-6) << bytes;
  }
}

// Gradients of float32 are there in half the time if they travel in 16 bits.
TEST(CostBetweenHosts, A16BitWireCarriesHalfTheBytes) {
  ops::MachineConstants constants;
  constants.wire_bytes_per_us = 120;
  for (const int hosts : {2, 4}) {
    const AllreduceCost whole = cost_between_hosts(hosts, 4 << 20, constants, 0);
    const AllreduceCost half = cost_between_hosts(hosts, 4 << 20, constants, 0, DataType::BFloat16);
    EXPECT_NEAR(half.bytes_per_us, 2 * whole.bytes_per_us, 1e-6);
    EXPECT_EQ(half.latency_us, whole.latency_us);
  }
  // So few bytes are never rounded.
  EXPECT_NEAR(cost_between_hosts(2, 4 << 10, constants, 0, DataType::BFloat16).bytes_per_us, 120,
              1e-6);
  // As in the ops: the network that is given does not decide how often sums are rounded.
  constants.message_us = 500;
  EXPECT_EQ(cost_between_hosts(4, 32 << 10, constants, 0).latency_us, 500 + 2 * 500);
  EXPECT_EQ(cost_between_hosts(4, 32 << 10, constants, 0, DataType::Float16).latency_us,
            1000 + 2 * 500);
}

}  // namespace
}  // namespace horon::bench
