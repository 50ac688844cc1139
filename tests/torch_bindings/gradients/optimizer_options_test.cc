// With every option, N ranks take the steps of one process on the whole batch.
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "horon/ops/session/process_set.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"

namespace horon::optimizer_options_test {
namespace {

namespace optim = ::torch::optim;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

const auto kSgd = optim::SGDOptions(0.1).momentum(0.9);

using Distributed = DistributedOptimizer<optim::SGD>;
// What this rank does for one step, up to step(): with its part of the batch.
using Passes = std::function<void(Net&, Distributed&, const Batch& whole)>;

void plain_pass(Net& net, Distributed&, const Batch& whole) {
  loss_of(net, shard_of(whole)).backward();
}

// One process on the whole batches.
Net train_alone(at::ScalarType dtype, int64_t samples, double factor = 1) {
  Net net = make_net(dtype);
  optim::SGD optimizer(net->parameters(), kSgd);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    (loss_of(net, batch_of(step, dtype, samples)) * factor).backward();
    optimizer.step();
  }
  return net;
}

void compare(GradientReducerOptions options, double tolerance, const Passes& passes = plain_pass,
             at::ScalarType dtype = at::kDouble, int64_t samples = kShard * size(),
             double factor = 1) {
  const Net alone = train_alone(dtype, samples, factor);
  Net net = make_net(dtype);
  options.bucket_bytes = 2000;
  options.first_bucket_bytes = 100;
  Distributed optimizer(optim::SGD(net->parameters(), kSgd), net->named_parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    passes(net, optimizer, batch_of(step, dtype, samples));
    optimizer.step();
  }
  EXPECT_EQ(optimizer.statistics().late_parts, 0);
  expect_same_parameters(*net, *alone, tolerance);
  expect_equal_on_all_ranks(*net);
  EXPECT_FALSE(make_net(dtype)->out->weight.equal(net->out->weight)) << "nothing was learned";
}

TEST(TrainingOptions, Compression) {
  // Parameters move by 0.5. Seen: 3e-4 and, where an error makes a ReLU flip, 7e-2.
  compare({.compression = Compression::Float16}, 2e-3, plain_pass, at::kFloat);
  compare({.compression = Compression::BFloat16}, 0.15, plain_pass, at::kFloat);
}

TEST(TrainingOptions, GroupsPredivideFactorAndChecks) {
  compare({.num_groups = 2, .check_finite = true}, 1e-9);
  compare({.gradient_predivide_factor = 2, .groups = {{"conv.weight", "out.bias"}}}, 1e-9);
}

void two_halves(Net& net, const Batch& shard) {
  loss_of(net, shard.narrow(0, kShard / 2)).backward();
  loss_of(net, shard.narrow(kShard / 2, kShard / 2)).backward();
}

TEST(TrainingOptions, BackwardPassesPerStep) {
  const auto passes = [](Net& net, Distributed&, const Batch& whole) {
    two_halves(net, shard_of(whole));
  };
  compare({.backward_passes_per_step = 2, .average_aggregated_gradients = true}, 1e-9, passes);
  // As Horovod: the sum of the passes is not divided.
  compare({.backward_passes_per_step = 2}, 1e-9, passes, at::kDouble, kShard * size(), 2);
}

TEST(TrainingOptions, NoSync) {
  const auto passes = [](Net& net, Distributed& optimizer, const Batch& whole) {
    const Batch shard = shard_of(whole);
    {
      const auto scope = optimizer.no_sync();
      (loss_of(net, shard.narrow(0, kShard / 2)) / 2).backward();
    }
    (loss_of(net, shard.narrow(kShard / 2, kShard / 2)) / 2).backward();
  };
  compare({}, 1e-9, passes);
}

// Rank r has r + 1 samples, and each rank's loss is the mean over its own.
TEST(TrainingOptions, UnevenBatchesWithWeights) {
  const auto passes = [](Net& net, Distributed& optimizer, const Batch& whole) {
    const int64_t own = rank() + 1;
    optimizer.set_weight(static_cast<double>(own));
    loss_of(net, whole.narrow(rank() * own / 2, own)).backward();
  };
  compare({}, 1e-9, passes, at::kDouble, size() * (size() + 1) / 2);
}

// In every other step the last rank has nothing.
TEST(TrainingOptions, EmptyBatchesWithWeights) {
  if (size() == 1) return;
  const int64_t samples = kShard * (size() - 1);
  const auto passes = [](Net& net, Distributed& optimizer, const Batch& whole) {
    const bool empty = rank() == size() - 1;
    optimizer.set_weight(empty ? 0 : kShard);
    const Batch shard = empty ? whole.narrow(0, 0) : shard_of(whole);
    const at::Tensor loss = loss_of(net, shard);
    EXPECT_EQ(loss.isnan().item<bool>(), empty);
    loss.backward();
  };
  compare({}, 1e-9, passes, at::kDouble, samples);
}

TEST(TrainingOptions, ProcessSetsTrainApart) {
  const ProcessSet set = add_even_odd_process_set();
  const Net alone = train_alone(at::kDouble, kShard * set.size());
  Net net = make_net(at::kDouble);
  Distributed optimizer(optim::SGD(net->parameters(), kSgd), net->named_parameters(),
                        {.process_set = set});
  for (int step = 0; step < kSteps; ++step) {
    const Batch whole = batch_of(step, at::kDouble, kShard * set.size());
    optimizer.zero_grad();
    loss_of(net, whole.narrow(kShard * set.rank(), kShard)).backward();
    optimizer.step();
  }
  expect_same_parameters(*net, *alone, 1e-9);
}

TEST(TrainingOptions, EarlyStepMovesNothing) {
  Net net = make_net(at::kDouble);
  Distributed optimizer(optim::SGD(net->parameters(), kSgd), net->named_parameters(),
                        {.backward_passes_per_step = 2});
  const Batch shard = shard_of(batch_of(0, at::kDouble));
  const at::Tensor before = net->out->weight.detach().clone();
  loss_of(net, shard).backward();
  EXPECT_THAT(error_of([&] { optimizer.step(); }),
              AllOf(StartsWith(kInvalid), HasSubstr("backward_passes_per_step")));
  EXPECT_TRUE(before.equal(net->out->weight));
  // The last passes of an epoch may be fewer.
  optimizer.zero_grad();
  loss_of(net, shard).backward();
  optimizer.synchronize();
  optimizer.step();
  EXPECT_FALSE(before.equal(net->out->weight));
  optimizer.zero_grad();
  two_halves(net, shard);
  optimizer.step();
  expect_equal_on_all_ranks(*net);
}

// `in_closure`: the weight is given in each evaluation, and not once for the step.
void expect_weighted_loss_of_lbfgs(bool in_closure) {
  const auto options = optim::LBFGSOptions(0.5).max_iter(4);
  const int64_t samples = size() * (size() + 1) / 2;
  Net alone = make_net(at::kDouble), net = make_net(at::kDouble);
  optim::LBFGS plain(alone->parameters(), options);
  DistributedOptimizer optimizer(optim::LBFGS(net->parameters(), options), net->named_parameters());
  for (int step = 0; step < 3; ++step) {
    const Batch whole = batch_of(step, at::kDouble, samples);
    const Batch own = whole.narrow(rank() * (rank() + 1) / 2, rank() + 1);
    const at::Tensor want = plain.step([&] {
      plain.zero_grad();
      const at::Tensor loss = loss_of(alone, whole);
      loss.backward();
      return loss;
    });
    if (!in_closure) optimizer.set_weight(rank() + 1);
    const at::Tensor got = optimizer.step([&] {
      optimizer.zero_grad();
      if (in_closure) optimizer.set_weight(rank() + 1);
      const at::Tensor loss = loss_of(net, own);
      loss.backward();
      return loss;
    });
    EXPECT_NEAR(got.item<double>(), want.item<double>(), 1e-9);
  }
  expect_same_parameters(*net, *alone, 1e-6);
  expect_equal_on_all_ranks(*net);
}

TEST(TrainingOptions, WeightedLossDecidesOfLbfgs) {
  expect_weighted_loss_of_lbfgs(true);
  expect_weighted_loss_of_lbfgs(false);
}

// The last rank has no samples, and its closure returns no loss; all get the other ranks' loss.
TEST(TrainingOptions, ARankWithoutALossKeepsNobodyWaiting) {
  if (size() == 1) return;
  const bool has_none = rank() == size() - 1;
  for (const bool weighted : {true, false}) {
    const at::Tensor w = leaf({2});
    DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
    if (weighted) optimizer.set_weight(has_none ? 0 : 1);
    const at::Tensor loss = optimizer.step([&] {
      if (has_none) return at::Tensor();
      const at::Tensor own = (w * (rank() + 1)).sum();
      own.backward();
      return own;
    });
    EXPECT_NEAR(loss.item<double>(), size(), 1e-6);  // the mean of 2, 4, ..., 2 (N - 1)
  }
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, {.name = "sizes"});
  EXPECT_FALSE(optimizer.step([] { return at::Tensor(); }).defined());
  const auto step = [&] { optimizer.step([&] { return at::ones({has_none ? 2 : 1}); }); };
  EXPECT_THAT(error_of(step),
              AllOf(HasSubstr("\"sizes\""), HasSubstr("float [2]; it must be one")));
  EXPECT_EQ(optimizer.step([] { return at::ones({}); }).item<double>(), 1);
}

// An embedding whose gradients stay sparse, under an optimizer that takes such ones.
TEST(TrainingOptions, SparseGradients) {
  constexpr int64_t kWords = 11, kSentence = 3;
  const auto indices = [](int step, int64_t sentences) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(step);
    return at::randint(0, kWords, {sentences, kSentence}, generator, at::kLong);
  };
  const auto loss = [](const at::Tensor& table, const at::Tensor& words) {
    return at::embedding(table, words, -1, false, true).square().sum(-1).mean();
  };
  const auto table = [] { return at::linspace(0, 1, kWords * 2, at::kDouble).view({kWords, 2}); };
  const at::Tensor alone = table().requires_grad_(true), own = table().requires_grad_(true);
  optim::Adagrad plain({alone}, optim::AdagradOptions(0.1));
  DistributedOptimizer optimizer(optim::Adagrad({own}, optim::AdagradOptions(0.1)),
                                 NamedTensors{{"table", own}}, {.sparse_as_dense = false});
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor whole = indices(step, kShard * size());
    plain.zero_grad();
    loss(alone, whole).backward();
    plain.step();
    optimizer.zero_grad();
    loss(own, whole.narrow(0, kShard * rank(), kShard)).backward();
    optimizer.step();
    EXPECT_EQ(own.grad().layout(), at::kSparse);
  }
  EXPECT_TRUE(at::allclose(own, alone, 0, 1e-9)) << own << alone;
}

}  // namespace
}  // namespace horon::optimizer_options_test
