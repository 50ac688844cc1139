// Gradients of float32 that travel between hosts in 16 bits (HORON_WIRE_DTYPE). The environment
// says whether they do; on one host they never do.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "horon/ops/session/running_job.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"

namespace horon::narrow_wire_test {
namespace {

using namespace testing_support;

constexpr int64_t kLong = 3000;  // elements: more than 4 KiB
constexpr int64_t kShort = 7;

// The rounding error of float32 arithmetic, without the wire.
constexpr double kFloatError = 1e-6;

double wire_error() {
  const std::string& dtype = ops::runtime().config().wire_dtype;
  if (local_size() == size() || dtype == "float32") return 0;
  return dtype == "bfloat16" ? std::ldexp(1, -8) : std::ldexp(1, -11);
}

// The values of rank `of`, which every rank can compute.
at::Tensor values_of(int of, int64_t count, int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1 + of + 100 * step);
  return at::randn({count}, generator, at::kFloat);
}

struct Expected {
  at::Tensor mean;   // as doubles
  at::Tensor bound;  // of the error, for each element, if the wire is narrow
};

Expected expected_of(int64_t count, int64_t step) {
  const core::Topology& topology = ops::runtime().topology();
  std::vector<at::Tensor> hosts(static_cast<size_t>(topology.host_count()),
                                at::zeros({count}, at::kDouble));
  for (int r = 0; r < size(); ++r) {
    at::Tensor& host = hosts[static_cast<size_t>(topology.host_of[static_cast<size_t>(r)])];
    host = host + values_of(r, count, step).to(at::kDouble);
  }
  Expected expected{at::zeros({count}, at::kDouble), at::zeros({count}, at::kDouble)};
  for (const at::Tensor& host : hosts) {
    expected.mean += host / size();
    expected.bound += host.abs() / size();
  }
  // The sum of each host is rounded, and with three hosts or more the result too.
  if (topology.host_count() > 2) expected.bound += expected.mean.abs() * 1.01;
  return expected;
}

bool equal_on_all_ranks(const at::Tensor& tensor) {
  const at::Tensor bits = tensor.detach().contiguous().view(at::kInt);
  return at::equal(allreduce(bits, {.op = ReduceOp::Min}), allreduce(bits, {.op = ReduceOp::Max}));
}

// `narrow`: it may be rounded for the wire, and is if the wire is narrow.
void expect_mean(const at::Tensor& result, int64_t step, bool narrow) {
  const Expected expected = expected_of(result.numel(), step);
  const at::Tensor error = (result.detach().to(at::kDouble) - expected.mean).abs();
  const double of_wire = narrow ? wire_error() : 0;
  const at::Tensor bound = expected.bound * (of_wire * 1.001) + kFloatError;
  EXPECT_TRUE((error <= bound).all().item<bool>()) << error.max() << " in step " << step;
  EXPECT_EQ((error > kFloatError).any().item<bool>(), of_wire > 0) << error.max();
  EXPECT_TRUE(equal_on_all_ranks(result)) << "step " << step;
}

at::Tensor loss_for(const at::Tensor& w, int64_t step) {
  return (w * values_of(rank(), w.numel(), step)).sum();
}

TEST(NarrowWire, GradientsAreWithinItsRoundingAndTheSameOnAllRanks) {
  const at::Tensor w = leaf({kLong});
  GradientReducer reducer({{"w", w}});
  for (int64_t step = 0; step < 6; ++step) {  // by messages, and frozen
    w.mutable_grad().reset();
    loss_for(w, step).backward();
    reducer.synchronize();
    expect_mean(w.grad(), step, true);
  }
}

// A bucket counts as one tensor: a short gradient in a long bucket is rounded with the rest.
TEST(NarrowWire, AShortGradientIsRoundedInALongBucketOnly) {
  const at::Tensor w = leaf({kLong}), v = leaf({kShort});
  for (const bool shares_bucket : {true, false}) {
    GradientReducer reducer({{"w", w}, {"v", v}},
                            shares_bucket ? GradientReducerOptions() : alone());
    for (int64_t step = 0; step < 6; ++step) {
      w.mutable_grad().reset();
      v.mutable_grad().reset();
      (loss_for(w, step) + loss_for(v, step)).backward();
      reducer.synchronize();
      expect_mean(v.grad(), step, shares_bucket);
      if (shares_bucket) expect_mean(w.grad(), step, true);  // else its bucket may join v's
    }
  }
}

// What the ranks tell each other about their replicas rides on the bucket.
TEST(NarrowWire, ReplicasAreComparedAllTheSame) {
  const at::Tensor w = leaf({kLong});
  GradientReducer reducer({{"w", w}});
  const auto round = [&] {
    w.mutable_grad().reset();
    loss_for(w, 0).backward();
    reducer.synchronize();
  };
  for (int i = 0; i < 5; ++i) ASSERT_EQ(error_of(round), "no error");
  if (rank() == size() - 1) w.detach().mul_(2);
  EXPECT_THAT(error_of(round),
              testing::AllOf(testing::StartsWith(kMismatch), testing::HasSubstr("\"w\"")));
}

TEST(NarrowWire, AGroupCountsAsOneTensor) {
  for (int64_t step = 0; step < 6; ++step) {
    const std::vector<at::Tensor> results = grouped_allreduce(
        {values_of(rank(), kLong, step), values_of(rank(), kShort, step)}, {.name = "group"});
    for (const at::Tensor& result : results) expect_mean(result, step, true);
  }
}

TEST(NarrowWire, ParametersStayEqualOnAllRanks) {
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(::torch::optim::SGD(net->parameters(), 0.1),
                                 net->named_parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net, shard_of(batch_of(step, at::kFloat))).backward();
    optimizer.step();
  }
  EXPECT_EQ(optimizer.statistics().buckets, 1);  // of more than 4 KiB
  expect_equal_on_all_ranks(*net);
  EXPECT_FALSE(make_net(at::kFloat)->out->weight.equal(net->out->weight)) << "nothing was learned";
}

}  // namespace
}  // namespace horon::narrow_wire_test
