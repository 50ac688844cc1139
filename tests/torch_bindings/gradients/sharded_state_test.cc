// State that is shared out over the ranks, and saved, loaded and broadcast.
#include <filesystem>
#include <string>
#include <type_traits>
#include <unistd.h>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/gradients/sharded_support.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/guards/rank_zero.h"
#include "horon/torch_bindings/lr/lamb.h"
#include "horon/torch_bindings/lr/lars.h"
#include "horon/torch_bindings/session.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::sharded_state_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

// Both optimizers train alike. Then a plain optimizer goes on from the state that one rank gets and
// saves, as if it were that of the unsharded optimizer.
template <class Opt, class Options>
void compare(const Options& options, at::ScalarType dtype = at::kFloat) {
  Net net = make_net(dtype);
  DistributedOptimizer optimizer(Opt(net->parameters(), options), *net, sharded());
  Net expected = make_net(dtype);
  DistributedOptimizer unsharded(Opt(expected->parameters(), options), *expected, whole());
  EXPECT_EQ(ranks_of_state(optimizer).size(), size() > 1 ? static_cast<size_t>(size()) : 0);
  train_steps(net, optimizer, 0, 5, dtype);
  train_steps(expected, unsharded, 0, 5, dtype);
  expect_equal_on_all_ranks(*net);
  expect_same_bits(net, expected);
  const auto states = static_cast<int64_t>(unsharded.state().size());
  // Adagrad has state of parameters that have never had a gradient.
  const int64_t idle = std::is_same_v<Opt, optim::Adagrad> && size() == 1 ? 2 : 0;
  EXPECT_GE(states, 1);
  EXPECT_LE(sum_over_ranks(static_cast<int64_t>(optimizer.state().size())), states + idle);
  EXPECT_EQ(static_cast<int64_t>(optimizer.state().size()) < states, size() > 1);

  const int root = size() - 1;
  optimizer.consolidate_state(root);
  if (rank() != root) return;
  EXPECT_EQ(static_cast<int64_t>(optimizer.state().size()), states);
  Net copy = make_net(dtype);
  Opt plain(copy->parameters(), options);
  load_from(plain, archive_of(optimizer));
  Net other = make_net(dtype);
  Opt of_unsharded(other->parameters(), options);
  load_from(of_unsharded, archive_of(unsharded));
  for (auto* const trained : {&copy, &other}) {
    loss_of(*trained, batch_of(9, dtype)).backward();
  }
  plain.step();
  of_unsharded.step();
  expect_same_bits(copy, other);
}

TEST(ShardedState, EveryOptimizerTakesTheSameSteps) {
  compare<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3));
  compare<optim::Adam>(optim::AdamOptions(1e-2));
  compare<optim::AdamW>(optim::AdamWOptions(1e-2).amsgrad(true), at::kDouble);
  compare<optim::Adagrad>(optim::AdagradOptions(1e-2));
  compare<optim::RMSprop>(optim::RMSpropOptions(1e-3).momentum(0.9).centered(true));
  compare<Lars>(LarsOptions(0.1).momentum(0.9));
  compare<Lamb>(LambOptions(1e-2));
}

// Another optimizer goes on from the checkpoint: on as many ranks, and, since the file holds all
// state, without shards.
TEST(ShardedState, CheckpointsHoldAllOfIt) {
  const std::string name = "horon_sharded_state_" + std::to_string(getpid());
  const std::string folder =
      broadcast_bytes((std::filesystem::temp_directory_path() / name).string());
  Net expected = make_net(at::kFloat);
  DistributedOptimizer reference(optim::Adam(expected->parameters(), 1e-2), *expected, whole());
  train_steps(expected, reference, 0, 6);
  {
    Net net = make_net(at::kFloat);
    DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, sharded());
    Checkpoints checkpoints(folder);
    checkpoints.add("model", *net).add("optimizer", optimizer);
    train_steps(net, optimizer, 0, 3);
    checkpoints.save(3);
    train_steps(net, optimizer, 3, 6);
    checkpoints.wait();
    expect_same_bits(net, expected);
  }
  for (const bool shards : {true, false}) {
    Net net = make_net(at::kFloat);
    DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net,
                                   shards ? sharded() : whole());
    train_steps(net, optimizer, 8, 9);  // has state of its own before it loads
    Checkpoints checkpoints(folder);
    checkpoints.add("model", *net).add("optimizer", optimizer);
    ASSERT_TRUE(checkpoints.load_latest().has_value());
    train_steps(net, optimizer, 3, 6);
    expect_same_bits(net, expected);
  }
  barrier();
  if (is_rank_zero()) std::filesystem::remove_all(folder);
}

TEST(ShardedState, AreBroadcast) {
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, sharded());
  Net expected = make_net(at::kFloat);
  DistributedOptimizer unsharded(optim::Adam(expected->parameters(), 1e-2), *expected, whole());
  train_steps(net, optimizer, 0, 2);
  train_steps(expected, unsharded, 0, 2);
  const int root = size() - 1;
  broadcast_optimizer_state(optimizer, root);
  train_steps(net, optimizer, 2, 4);
  train_steps(expected, unsharded, 2, 4);
  expect_same_bits(net, expected);
  // What the root alone has loaded goes to all.
  if (rank() == root) {
    Net other = make_net(at::kFloat);
    optim::Adam plain(other->parameters(), 0.5);
    loss_of(other, batch_of(0, at::kFloat)).backward();
    plain.step();
    const std::string bytes = archive_of(plain);
    optimizer.state().clear();
    load_from(optimizer, bytes);
    load_from(unsharded, bytes);
  }
  broadcast_optimizer_state(optimizer, root);
  broadcast_optimizer_state(unsharded, root);
  train_steps(net, optimizer, 4, 6);
  train_steps(expected, unsharded, 4, 6);
  expect_same_bits(net, expected);
}

TEST(ShardedState, APartOfTheStateIsNotSaved) {
  if (size() == 1) GTEST_SKIP() << "one rank has all state";
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, sharded());
  EXPECT_EQ(error_of([&] { (void)archive_of(optimizer); }), "no error");
  train_steps(net, optimizer, 0, 1);
  EXPECT_THAT(error_of([&] { (void)archive_of(optimizer); }),
              AllOf(HasSubstr("sharded over"), HasSubstr("consolidate_state(")));
  optimizer.consolidate_state();
  EXPECT_EQ(error_of([&] { (void)archive_of(optimizer); }) == "no error", rank() == 0);
  train_steps(net, optimizer, 1, 2);
  EXPECT_NE(error_of([&] { (void)archive_of(optimizer); }), "no error");
  broadcast_optimizer_state(optimizer, 0);
  EXPECT_NE(error_of([&] { (void)archive_of(optimizer); }), "no error");
}

// What is loaded is whole until the next step.
TEST(ShardedState, IsSavedAsItWasLoaded) {
  Net trained = make_net(at::kFloat);
  optim::Adam plain(trained->parameters(), 1e-2);
  loss_of(trained, batch_of(0, at::kFloat)).backward();
  plain.step();
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, sharded());
  load_from(optimizer, archive_of(plain));
  EXPECT_EQ(archive_of(optimizer).size(), archive_of(plain).size());
  optimizer.consolidate_state();
  EXPECT_EQ(archive_of(optimizer).size(), archive_of(plain).size());
}

TEST(ShardedState, IsBroadcastAmongAllThatShareIt) {
  if (size() < 3) GTEST_SKIP() << "needs 3 ranks";
  const ProcessSet set = add_process_set({0, 1});
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, sharded());
  if (set.includes_me()) {
    EXPECT_THAT(error_of([&] { broadcast_optimizer_state(optimizer, 0, set); }),
                AllOf(HasSubstr("is sharded over ranks 0"), HasSubstr("among ranks 0 and 1 only")));
  }
  remove_process_set(set);
}

// The ranks tell each other in bits of numbers of 64 which of them move.
TEST(ShardedState, GoesWithMoreParametersThanANumberHasBits) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 130; ++i) parameters.push_back(at::ones({2}).set_requires_grad(true));
  DistributedOptimizerOptions options = sharded();
  options.shard_gradients = true;
  DistributedOptimizer optimizer(::torch::optim::SGD(parameters, 1.0), {}, options);
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < parameters.size(); i += 3) {
    loss = loss + parameters[i].sum() * (rank() + 1);
  }
  loss.backward();
  optimizer.step();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double moved = i % 3 == 0 ? (size() + 1) / 2.0 : 0;
    EXPECT_TRUE(parameters[i].eq(1 - moved).all().item<bool>()) << i << parameters[i];
  }
}

}  // namespace
}  // namespace horon::sharded_state_test
