// N ranks on shards of a batch take the steps of one process on the whole batch, for every
// optimizer of LibTorch; and the parameters of all ranks are equal to the bit.
#include <sstream>
#include <string>

#include "horon/tests/support/statistics_between_collectives.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"

namespace horon::optimizer_training_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;

// Plain LibTorch, and Horon, with the same loop.
template <class Optimizer>
void train(Net& net, Optimizer& optimizer, at::ScalarType dtype, bool sharded, bool in_closure,
           int steps = kSteps) {
  for (int step = 0; step < steps; ++step) {
    const Batch whole = batch_of(step, dtype);
    const Batch mine = sharded ? shard_of(whole) : whole;
    const auto closure = [&] {
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(net, mine);
      loss.backward();
      return loss;
    };
    if (in_closure) {
      optimizer.step(closure);
    } else {
      closure();
      static_cast<optim::Optimizer&>(optimizer).step();
    }
  }
}

template <class Opt, class Options>
void compare(const Options& options, at::ScalarType dtype, double tolerance,
             bool in_closure = false, int steps = kSteps) {
  Net alone = make_net(dtype);
  Opt plain(alone->parameters(), options);
  train(alone, plain, dtype, false, in_closure, steps);

  Net net = make_net(dtype);
  // Small buckets: several, with the last ones not full.
  DistributedOptimizer optimizer(
      Opt(net->parameters(), options), net->named_parameters(),
      {.op = ReduceOp::Average, .bucket_bytes = 2000, .first_bucket_bytes = 100});
  train(net, optimizer, dtype, true, in_closure, steps);

  EXPECT_EQ(optimizer.statistics().buckets, 3);
  EXPECT_EQ(optimizer.statistics().late_parts, 0);
  expect_equal_on_all_ranks(*net);
  expect_same_parameters(*net, *alone, tolerance);
  for (const auto& item : net->named_parameters()) {
    // A parameter that nobody uses has no gradient, not one of zeros.
    EXPECT_EQ(item.value().grad().defined(), item.key() != "unused" && item.key() != "empty");
  }
  EXPECT_FALSE(make_net(dtype)->out->weight.equal(net->out->weight)) << "nothing was learned";
}

TEST(Training, Sgd) { compare<optim::SGD>(optim::SGDOptions(0.1), at::kDouble, 1e-9); }

TEST(Training, SgdWithMomentumAndWeightDecay) {
  const auto options = optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true);
  compare<optim::SGD>(options, at::kDouble, 1e-9);
  // float32: rounding of 20 steps; seen 1e-6.
  compare<optim::SGD>(options, at::kFloat, 2e-5);
}

TEST(Training, Adam) {
  compare<optim::Adam>(optim::AdamOptions(0.01), at::kDouble, 1e-9);
  // Adam divides by the root of small squares, which enlarges rounding errors.
  compare<optim::Adam>(optim::AdamOptions(0.01), at::kFloat, 1e-3);
}

TEST(Training, AdamW) {
  compare<optim::AdamW>(optim::AdamWOptions(0.01).weight_decay(0.1).amsgrad(true), at::kDouble,
                        1e-9);
}

TEST(Training, Adagrad) { compare<optim::Adagrad>(optim::AdagradOptions(0.05), at::kDouble, 1e-9); }

TEST(Training, RmsProp) {
  compare<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true), at::kDouble,
                          1e-9);
}

TEST(Training, ClosureOfSgd) {
  compare<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9), at::kDouble, 1e-9, true);
}

// LBFGS calls the closure as often as its line search wants, by loss and gradient, so on all ranks
// alike. It divides by differences of gradients, so a rounding error grows tenfold in two steps,
// and sooner or later changes a decision of the line search: on one kind of CPU within 20 steps.
// After six steps, another last bit of the first parameters changes the last ones by 2e-12 at most.
TEST(Training, ClosureOfLbfgs) {
  const auto options =
      optim::LBFGSOptions(0.5).max_iter(4).line_search_fn(std::string("strong_wolfe"));
  compare<optim::LBFGS>(options, at::kDouble, 1e-8, true, 6);
}

TEST(Training, SumOfGradientsIsTheirAverageTimesRanks) {
  Net alone = make_net(at::kDouble);
  optim::SGD plain(alone->parameters(), optim::SGDOptions(0.02 * size()));
  train(alone, plain, at::kDouble, false, false);
  Net net = make_net(at::kDouble);
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), 0.02), net->named_parameters(),
                                 {.op = ReduceOp::Sum});
  train(net, optimizer, at::kDouble, true, false);
  expect_equal_on_all_ranks(*net);
  expect_same_parameters(*net, *alone, 1e-9);
}

// Clipping looks at the reduced gradients: after backward(), or after synchronize() with
// WaitIn::Step.
void clip_and_compare(WaitIn wait_in) {
  Net alone = make_net(at::kDouble);
  Net net = make_net(at::kDouble);
  optim::SGD plain(alone->parameters(), optim::SGDOptions(0.5));
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), 0.5), *net, {.wait_in = wait_in});
  for (int step = 0; step < kSteps; ++step) {
    const Batch whole = batch_of(step, at::kDouble);
    plain.zero_grad();
    loss_of(alone, whole).backward();
    ::torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.1);
    plain.step();

    optimizer.zero_grad();
    loss_of(net, shard_of(whole)).backward();
    if (wait_in == WaitIn::Step) optimizer.synchronize();
    ::torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1);
    optimizer.step();
  }
  EXPECT_EQ(optimizer.statistics().steps, kSteps);
  expect_equal_on_all_ranks(*net);
  EXPECT_TRUE(at::allclose(net->out->weight, alone->out->weight, 0, 1e-9));
}

TEST(Training, ClippingAfterBackward) { clip_and_compare(WaitIn::Backward); }
TEST(Training, ClippingAfterSynchronize) { clip_and_compare(WaitIn::Step); }

// Learning rate schedulers, saving and loading take it for the optimizer that it derives from.
TEST(Training, IsAnOptimizer) {
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), optim::AdamOptions(0.01)),
                                 net->named_parameters());
  optim::StepLR schedule(optimizer, 1, 0.5);
  loss_of(net, shard_of(batch_of(0, at::kFloat))).backward();
  optim::Optimizer& base = optimizer;
  base.step();
  schedule.step();
  schedule.step();
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.005);

  std::stringstream archive;
  ::torch::save(optimizer, archive);
  Net other = make_net(at::kFloat);
  optim::Adam loaded(other->parameters(), optim::AdamOptions(0.01));
  ::torch::load(loaded, archive);
  EXPECT_EQ(loaded.state().size(), optimizer.state().size());
  EXPECT_GT(loaded.state().size(), 0u);
}

// Two optimizers, one of them held by the program, with parameters that have no names but their
// positions, which are the same in both.
TEST(Training, WithoutNames) {
  Net alone = make_net(at::kDouble);
  optim::SGD plain(alone->parameters(), optim::SGDOptions(0.1));
  train(alone, plain, at::kDouble, false, false);

  Net first = make_net(at::kDouble), second = make_net(at::kDouble);
  DistributedOptimizer optimizer(optim::SGD(first->parameters(), optim::SGDOptions(0.1)));
  optim::SGD held(second->parameters(), optim::SGDOptions(0.1));
  DistributedOptimizer of_second(static_cast<optim::Optimizer&>(held));
  for (int step = 0; step < kSteps; ++step) {
    const Batch mine = shard_of(batch_of(step, at::kDouble));
    optimizer.zero_grad();
    of_second.zero_grad();
    (loss_of(first, mine) + loss_of(second, mine)).backward();
    optimizer.step();
    of_second.step();
  }
  for (const Net& net : {first, second}) {
    expect_equal_on_all_ranks(*net);
    expect_same_parameters(*net, *alone, 1e-9);
  }
  EXPECT_THAT(
      error_of([&] { DistributedOptimizer(optim::SGD(first->parameters(), 0.1)); }),
      testing::AllOf(testing::StartsWith(kInvalid), testing::HasSubstr("\"param_group.0.0\"")));
}

// A step has three small buckets and what the ranks tell each other about it. Time decides whether
// they fuse, but not whether they are frozen. Between hosts a start takes one message up and one
// down for each host but rank 0's; several starts may share them.
TEST(Training, AFrozenStepSendsNothingOnAHostAndLittleBetweenHosts) {
  if (size() == 1) GTEST_SKIP() << "one rank alone freezes nothing";
  const SessionWithoutLimits session;
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(
      optim::SGD(net->parameters(), optim::SGDOptions(0.01)), net->named_parameters(),
      {.op = ReduceOp::Average, .bucket_bytes = 2000, .first_bucket_bytes = 100});
  train(net, optimizer, at::kFloat, true, false);
  const Statistics before = test::statistics_between_collectives();
  train(net, optimizer, at::kFloat, true, false);
  const Statistics after = test::statistics_between_collectives();
  EXPECT_GE(after.frozen_starts - before.frozen_starts, 3U * kSteps);
  EXPECT_EQ(after.negotiated_starts - before.negotiated_starts, 0U);
  const uint64_t starts = after.frozen_starts - before.frozen_starts;
  uint64_t messages_max = local_rank() == 0 && cross_rank() > 0 ? starts : 0;
  if (rank() == 0) messages_max = starts * static_cast<uint64_t>(cross_size() - 1);
  const uint64_t sent = after.control_messages_sent - before.control_messages_sent;
  const uint64_t received = after.control_messages_received - before.control_messages_received;
  EXPECT_LE(sent, messages_max);
  EXPECT_LE(received, messages_max);
  EXPECT_EQ(sent > 0, messages_max > 0);
  EXPECT_EQ(after.thaws, before.thaws);
  EXPECT_EQ(after.bytes_in_flight, 0U);
}

}  // namespace
}  // namespace horon::optimizer_training_test
