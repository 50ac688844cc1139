// Compression::Int8: gradients of float32 travel between hosts in blocks of 64, as multiples of a
// step of each block. On one host nothing is rounded.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "horon/ops/host/host_kernels.h"
#include "horon/ops/session/running_job.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"

namespace horon::int8_gradients_test {
namespace {

using namespace testing_support;

constexpr int64_t kLong = 3000;  // elements: more than 4 KiB, and no whole number of blocks
constexpr double kFloatError = 1e-6;

const core::Topology& topology() { return ops::runtime().topology(); }

// MPI's own allreduce carries float32.
bool rounds() { return topology().host_count() > 1 && ops::runtime().config().allreduce != "mpi"; }

GradientReducerOptions in_int8() { return {.compression = Compression::Int8}; }

// The values of rank `of`, which every rank can compute. Blocks differ by orders of magnitude.
at::Tensor values_of(int of, int64_t count, int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1 + of + 100 * step);
  const at::Tensor block = at::arange(count).div(ops::kInt8BlockElements, "floor");
  return at::randn({count}, generator, at::kFloat) * at::pow(10, block.remainder(7) - 3.0);
}

// For each element the largest magnitude in its block; the tensor begins with a block.
at::Tensor largest_of_block(const at::Tensor& values) {
  const int64_t count = values.numel();
  const int64_t rest =
      (ops::kInt8BlockElements - count % ops::kInt8BlockElements) % ops::kInt8BlockElements;
  const at::Tensor blocks =
      at::constant_pad_nd(values.abs(), {0, rest}).view({-1, ops::kInt8BlockElements});
  return std::get<0>(blocks.max(1)).repeat_interleave(ops::kInt8BlockElements).narrow(0, 0, count);
}

// Expects the mean over these ranks. The sum of each host is rounded to half a step, and with three
// hosts or more the result too. `travels`: it travels between hosts in blocks.
void expect_mean_of(const std::vector<int>& ranks, const at::Tensor& result, int64_t step,
                    bool travels) {
  const int64_t count = result.numel();
  const auto contributors = static_cast<double>(ranks.size());
  std::vector<at::Tensor> hosts(static_cast<size_t>(topology().host_count()),
                                at::zeros({count}, at::kDouble));
  for (const int r : ranks) {
    at::Tensor& host = hosts[static_cast<size_t>(topology().host_of[static_cast<size_t>(r)])];
    host = host + values_of(r, count, step).to(at::kDouble);
  }
  at::Tensor mean = at::zeros({count}, at::kDouble);
  at::Tensor bound = at::zeros({count}, at::kDouble);
  for (const at::Tensor& host : hosts) {
    mean += host / contributors;
    bound += largest_of_block(host) / (254.0 * contributors);
  }
  if (topology().host_count() > 2) bound += largest_of_block(mean + bound) / 254.0;
  const at::Tensor error = (result.detach().to(at::kDouble) - mean).abs();
  const at::Tensor allowed =
      (travels ? bound * 1.001 : bound * 0) + largest_of_block(mean) * kFloatError + kFloatError;
  EXPECT_TRUE((error <= allowed).all().item<bool>()) << (error - allowed).max();
  EXPECT_EQ((error > bound / 20).any().item<bool>(), travels) << "rounded, or not";
}

void expect_same_bits(const at::Tensor& result, const ProcessSet& set = {}) {
  const at::Tensor bits = result.detach().contiguous().view(at::kInt);
  EXPECT_TRUE(at::equal(allreduce(bits, {.op = ReduceOp::Min, .process_set = set}),
                        allreduce(bits, {.op = ReduceOp::Max, .process_set = set})));
}

std::vector<int> ranks_from(int first, int end) {
  std::vector<int> ranks;
  for (int r = first; r < end; ++r) ranks.push_back(r);
  return ranks;
}

void expect_mean(const at::Tensor& result, int64_t step) {
  expect_mean_of(ranks_from(0, size()), result, step, rounds());
  expect_same_bits(result);
}

at::Tensor loss_for(const at::Tensor& w, int64_t step) {
  return (w * values_of(rank(), w.numel(), step)).sum();
}

TEST(Int8Gradients, AreWithinHalfAStepAndTheSameOnAllRanks) {
  const at::Tensor w = leaf({kLong});
  GradientReducer reducer({{"w", w}}, in_int8());
  for (int64_t step = 0; step < 6; ++step) {  // by messages, and frozen
    w.mutable_grad().reset();
    loss_for(w, step).backward();
    reducer.synchronize();
    expect_mean(w.grad(), step);
  }
}

// The blocks of a tensor do not depend on which other tensors are ready.
TEST(Int8Gradients, ATensorIsRoundedAloneAlsoBesideOthers) {
  for (int64_t step = 0; step < 4; ++step) {
    const AllreduceOptions options = {.compression = Compression::Int8};
    std::vector<Handle> handles;
    for (int i = 0; i < 5; ++i) {
      AllreduceOptions named = options;
      named.name = "beside." + std::to_string(i);
      handles.push_back(allreduce_async(values_of(rank(), kLong + i, step), named));
    }
    for (Handle& handle : handles) expect_mean(handle.wait(), step);
  }
}

TEST(Int8Gradients, ShortTensorsAndOtherReductionsAreExact) {
  const at::Tensor numbers = at::arange(kLong, at::kFloat) + rank();
  const at::Tensor most =
      allreduce(numbers, {.op = ReduceOp::Max, .compression = Compression::Int8});
  EXPECT_TRUE(at::equal(most, at::arange(kLong, at::kFloat) + (size() - 1)));
  const at::Tensor few = at::arange(1024, at::kFloat) * 1.001F;
  EXPECT_TRUE(at::equal(allreduce(few, {.op = ReduceOp::Sum, .compression = Compression::Int8}),
                        few * size()));
}

// One NaN makes its whole block NaN, but changes nothing in later rounds.
TEST(Int8Gradients, NanIsSeenOnAllRanksAndDoesNotStay) {
  const at::Tensor w = leaf({kLong});
  GradientReducer reducer({{"w", w}}, in_int8());
  for (int64_t step = 0; step < 8; ++step) {
    w.mutable_grad().reset();
    at::Tensor loss = loss_for(w, step);
    const bool bad = step % 4 == 1;
    if (bad && rank() == size() - 1) {
      loss = loss + w[kLong - 1] * std::numeric_limits<float>::quiet_NaN();
    }
    loss.backward();
    reducer.synchronize();
    if (!bad) {
      expect_mean(w.grad(), step);
      continue;
    }
    EXPECT_TRUE(w.grad()[kLong - 1].isnan().item<bool>());
    const int64_t clean = kLong / ops::kInt8BlockElements * ops::kInt8BlockElements;
    EXPECT_FALSE(w.grad().narrow(0, 0, clean).isnan().any().item<bool>());
  }
}

// What the ranks tell each other rides on the bucket in a block of its own, so it arrives also
// beside gradients of 1e30.
TEST(Int8Gradients, WhatTheRanksTellEachOtherIsNotRoundedAway) {
  const at::Tensor w = leaf({kLong});
  GradientReducer reducer({{"w", w}}, in_int8());
  const auto round = [&] {
    w.mutable_grad().reset();
    (w * 1e30).sum().backward();
    reducer.synchronize();
  };
  for (int i = 0; i < 5; ++i) ASSERT_EQ(error_of(round), "no error");
  if (rank() == size() - 1) w.detach().mul_(2);
  EXPECT_THAT(error_of(round),
              testing::AllOf(testing::StartsWith(kMismatch), testing::HasSubstr("\"w\"")));
}

// The older value shares blocks with gradients that are far larger.
TEST(Int8Gradients, AnOlderValueThatNobodyAddsToStaysAsItWas) {
  const at::Tensor w = leaf({kLong}), v = leaf({7});
  GradientReducer reducer({{"w", w}, {"v", v}}, in_int8());
  for (int step = 0; step < 3; ++step) {
    w.mutable_grad().reset();
    v.mutable_grad().reset();
    (w.sum() + (v * 0.01).sum()).backward();
    reducer.synchronize();
    const at::Tensor before = v.grad().clone();
    (w * (step == 2 ? std::numeric_limits<float>::quiet_NaN() : 1000.0F)).sum().backward();
    reducer.synchronize();
    EXPECT_TRUE(at::equal(v.grad(), before)) << v.grad();
    if (step < 2) {
      EXPECT_TRUE(at::allclose(w.grad(), at::full({kLong}, 1001.0F), 0.01, 0.01));
    }
  }
}

TEST(Int8Gradients, WeightsScalesAndPassesAreThoseOfFloat32) {
  const auto reduced = [](Compression compression) {
    const at::Tensor w = leaf({kLong}), v = leaf({130});
    GradientReducer reducer({{"w", w}, {"v", v}}, {.compression = compression,
                                                   .backward_passes_per_step = 2,
                                                   .average_aggregated_gradients = true,
                                                   .gradient_predivide_factor = 2});
    reducer.set_weight(rank() + 1);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(1 + rank());
    for (int pass = 0; pass < 2; ++pass) {
      const at::Tensor of_w = at::randn({kLong}, generator, at::kFloat);
      const at::Tensor of_v = at::randn({130}, generator, at::kFloat);
      ((w * of_w).sum() + (v * of_v).sum()).backward();
    }
    reducer.synchronize();
    return at::cat({w.grad(), v.grad()});
  };
  const at::Tensor exact = reduced(Compression::None);
  const at::Tensor off = (reduced(Compression::Int8) - exact).abs();
  EXPECT_LT(off.max().item<float>(), 0.03 * exact.abs().max().item<float>());
  EXPECT_EQ(off.max().item<float>() > 1e-4, rounds());
}

TEST(Int8Gradients, OtherDtypesIgnoreIt) {
  const at::Tensor w = leaf({kLong}, at::kDouble);
  GradientReducer reducer({{"w", w}}, in_int8());
  (w * values_of(rank(), kLong, 0)).sum().backward();
  reducer.synchronize();
  at::Tensor mean = at::zeros({kLong}, at::kDouble);
  for (int r = 0; r < size(); ++r) mean += values_of(r, kLong, 0).to(at::kDouble);
  EXPECT_TRUE(at::allclose(w.grad(), mean / size(), 1e-12, 1e-12));
}

// The set is the first rank and the last one, which are on two hosts if there are several.
TEST(Int8Gradients, AProcessSetRoundsWhatItsOwnHostsHave) {
  const std::vector<int> ends = {0, size() - 1};
  const ProcessSet set = add_process_set(ends);
  for (int64_t step = 0; step < 3 && set.includes_me(); ++step) {
    const at::Tensor mean =
        allreduce(values_of(rank(), kLong, step),
                  {.name = "ends", .process_set = set, .compression = Compression::Int8});
    expect_mean_of(ends, mean, step, rounds());
    expect_same_bits(mean, set);
  }
  remove_process_set(set);
}

// The joined rank's zeros need no rounding, and the average is that of the other ranks.
TEST(Int8Gradients, ARankThatHasJoinedAddsNothing) {
  if (rank() < size() - 1) {
    const at::Tensor mean =
        allreduce(values_of(rank(), kLong, 0), {.name = "rest", .compression = Compression::Int8});
    expect_mean_of(ranks_from(0, size() - 1), mean, 0, rounds());
  }
  EXPECT_GE(join(), 0);
}

TEST(Int8Gradients, OneRankThatDoesNotAskForItIsNamed) {
  const AllreduceOptions options{
      .name = "odd", .compression = rank() == 0 ? Compression::None : Compression::Int8};
  const std::string error = error_of([&] { allreduce(at::ones({kLong}), options); });
  EXPECT_THAT(error, testing::AllOf(testing::StartsWith(kMismatch), testing::HasSubstr("none"),
                                    testing::HasSubstr("int8")));
}

// As with float32 but for the rounding; and the replicas stay the same.
TEST(Int8Gradients, TrainingStaysNearThatOfFloat32) {
  Net exact = make_net(at::kFloat);
  Net rounded = make_net(at::kFloat);
  DistributedOptimizer of_exact(::torch::optim::SGD(exact->parameters(), 0.1),
                                exact->named_parameters());
  DistributedOptimizer of_rounded(::torch::optim::SGD(rounded->parameters(), 0.1),
                                  rounded->named_parameters(), in_int8());
  for (int step = 0; step < kSteps; ++step) {
    of_exact.zero_grad();
    loss_of(exact, shard_of(batch_of(step, at::kFloat))).backward();
    of_exact.step();
    of_rounded.zero_grad();
    loss_of(rounded, shard_of(batch_of(step, at::kFloat))).backward();
    of_rounded.step();
  }
  expect_equal_on_all_ranks(*rounded);
  const Net fresh = make_net(at::kFloat);
  const auto distance = [](Net& a, const Net& b) {
    double sum = 0;
    const std::vector<at::Tensor> of_a = a->parameters(), of_b = b->parameters();
    for (size_t i = 0; i < of_a.size(); ++i) sum += (of_a[i] - of_b[i]).norm().item<double>();
    return sum;
  };
  EXPECT_LT(distance(rounded, exact), 0.02 * distance(exact, fresh));
}

}  // namespace
}  // namespace horon::int8_gradients_test
