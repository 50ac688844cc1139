// Optimizer state that is shared out over the ranks, where the ranks differ, something fails on one
// of them, or a part of the state could be taken for all of it.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/gradients/sharded_support.h"
#include "horon/torch_bindings/session.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::state_shards_faults_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

std::string save_error(const optim::Optimizer& optimizer) {
  return error_of([&] { (void)archive_of(optimizer); });
}

// Parameters "0", "1", ... of one element.
struct Scalars {
  explicit Scalars(int count) {
    for (int i = 0; i < count; ++i) {
      all.push_back(at::ones({1}).set_requires_grad(true));
      named.emplace_back(std::to_string(i), all.back());
    }
  }
  // Parameter i has the gradient i + 1.
  void backward() const {
    at::Tensor loss = at::zeros({});
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].requires_grad()) loss = loss + all[i].sum() * static_cast<double>(i + 1);
    }
    loss.backward();
  }
  std::vector<double> values() const {
    std::vector<double> result;
    for (const at::Tensor& each : all) result.push_back(each.item<double>());
    return result;
  }
  std::vector<at::Tensor> all;
  NamedTensors named;
};

using Sgd = DistributedOptimizer<optim::SGD>;
optim::SGDOptions momentum() { return optim::SGDOptions(0.125).momentum(0.5); }
DistributedOptimizerOptions shards() { return sharded(); }

TEST(StateShards, GroupsInAnotherOrderOnSomeRanks) {
  const Scalars scalars(4);
  std::vector<at::Tensor> order = scalars.all;
  if (rank() % 2 == 1) std::reverse(order.begin(), order.end());
  Sgd optimizer(optim::SGD(order, momentum()), scalars.named, shards());
  scalars.backward();
  optimizer.step();
  EXPECT_EQ(scalars.values(), (std::vector<double>{0.875, 0.75, 0.625, 0.5}));
}

TEST(StateShards, GradientsOfSomeRanksAreNamed) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  const Scalars scalars(3);
  Sgd optimizer(optim::SGD(scalars.all, momentum()), scalars.named, shards());
  scalars.backward();
  optimizer.synchronize();
  if (rank() == 0) scalars.all[1].mutable_grad().reset();
  EXPECT_THAT(error_of([&] { optimizer.step(); }),
              AllOf(HasSubstr("parameter \"1\""), HasSubstr("without a gradient")));
  EXPECT_EQ(scalars.values(), (std::vector<double>{1, 1, 1}));
  optimizer.zero_grad();
  scalars.backward();
  optimizer.step();
  EXPECT_EQ(scalars.values(), (std::vector<double>{0.875, 0.75, 0.625}));
}

TEST(StateShards, ParametersThatHaveNoOneOwnerAreRefused) {
  if (size() == 1) GTEST_SKIP() << "nothing is shared out";
  const at::Tensor memory = at::ones({10});
  const at::Tensor first = memory.narrow(0, 0, 6).detach().set_requires_grad(true);
  const at::Tensor apart = memory.narrow(0, 6, 4).detach().set_requires_grad(true);
  const at::Tensor second = memory.narrow(0, 5, 3).detach().set_requires_grad(true);
  EXPECT_EQ(
      error_of([&] {
        Sgd(optim::SGD({first, apart}, momentum()), {{"first", first}, {"apart", apart}}, shards());
      }),
      "no error");
  EXPECT_THAT(error_of([&] {
                Sgd(optim::SGD({first, second}, momentum()), {{"first", first}, {"second", second}},
                    shards());
              }),
              HasSubstr("parameters \"first\" and \"second\" share memory"));
  EXPECT_THAT(error_of([&] {
                Sgd(optim::SGD({first, first}, momentum()), {{"first", first}}, shards());
              }),
              HasSubstr("parameter \"first\" is in the optimizer's groups twice"));
  const at::Tensor sparse = at::ones({3}).to_sparse().set_requires_grad(true);
  EXPECT_THAT(error_of([&] {
                Sgd(optim::SGD({first, sparse}, momentum()), {{"first", first}, {"sparse", sparse}},
                    shards());
              }),
              HasSubstr("tensor \"sparse\": has layout Sparse"));
}

// Frozen parameters have no state. The other parameters are shared out as if there were no frozen
// ones.
TEST(StateShards, FrozenParametersDoNotCount) {
  Scalars scalars(6);
  const at::Tensor frozen = at::ones({1000});
  scalars.named.emplace_back("frozen", frozen);
  std::vector<at::Tensor> parameters = scalars.all;
  parameters.push_back(frozen);
  Sgd optimizer(optim::SGD(parameters, momentum()), scalars.named, shards());
  scalars.backward();
  optimizer.step();
  EXPECT_LE(static_cast<int>(optimizer.state().size()), (6 + size() - 1) / size());
  frozen.set_requires_grad(true);
  optimizer.zero_grad();
  scalars.backward();
  frozen.sum().backward();
  optimizer.step();
  EXPECT_EQ(frozen[0].item<double>(), 0.875);
}

TEST(StateShards, ARankWithoutStateDoesNotSaveItAsAll) {
  if (size() == 1) GTEST_SKIP() << "one rank has all state";
  const Scalars scalars(1);
  Sgd optimizer(optim::SGD(scalars.all, momentum()), scalars.named, shards());
  scalars.backward();
  optimizer.step();
  EXPECT_THAT(save_error(optimizer), HasSubstr("is sharded over"));
  optimizer.consolidate_state(size() - 1);
  EXPECT_EQ(save_error(optimizer) == "no error", rank() == size() - 1);
  EXPECT_EQ(static_cast<int>(optimizer.state().size()),
            rank() == 0 || rank() == size() - 1 ? 1 : 0);
}

// An optimizer whose state can't be saved, or loaded, on one rank.
class Fails : public optim::SGD {
 public:
  using SGD::SGD;
  void save(::torch::serialize::OutputArchive& archive) const override {
    if (fails_to_save) throw std::runtime_error("can't be saved");
    SGD::save(archive);
  }
  void load(::torch::serialize::InputArchive& archive) override {
    if (fails_to_load) throw std::runtime_error("can't be loaded");
    SGD::load(archive);
  }
  bool fails_to_save = false;
  bool fails_to_load = false;
};

TEST(StateShards, AConsolidationThatFailsLeavesAPart) {
  if (size() == 1) GTEST_SKIP() << "nothing is gathered";
  const Scalars scalars(2 * size());
  DistributedOptimizer optimizer(Fails(scalars.all, momentum()), scalars.named, shards());
  scalars.backward();
  optimizer.step();
  optimizer.fails_to_save = rank() == size() - 1;
  EXPECT_THAT(error_of([&] { optimizer.consolidate_state(0); }), HasSubstr("can't be saved"));
  optimizer.fails_to_save = false;
  EXPECT_EQ(optimizer.state().size(), 2U);
  EXPECT_NE(save_error(optimizer), "no error");
  optimizer.fails_to_load = rank() == 0;
  EXPECT_THAT(error_of([&] { optimizer.consolidate_state(0); }), HasSubstr("can't be loaded"));
  optimizer.fails_to_load = false;
  EXPECT_EQ(optimizer.state().size(), 2U);
  EXPECT_NE(save_error(optimizer), "no error");
  optimizer.consolidate_state(0);
  EXPECT_EQ(optimizer.state().size(), rank() == 0 ? scalars.all.size() : 2U);
  EXPECT_EQ(save_error(optimizer) == "no error", rank() == 0);
}

TEST(StateShards, ConsolidatedWhereTheRanksDiffer) {
  if (size() == 1) GTEST_SKIP() << "nothing is gathered";
  const Scalars scalars(4);
  Sgd optimizer(optim::SGD(scalars.all, momentum()), scalars.named, shards());
  scalars.backward();
  optimizer.step();
  for (const int wrong : {99, 1}) {
    EXPECT_THAT(error_of([&] { optimizer.consolidate_state(rank() == 0 ? 0 : wrong); }),
                HasSubstr("consolidate_state"));
  }
  optimizer.consolidate_state(0);
  EXPECT_EQ(save_error(optimizer) == "no error", rank() == 0);
}

TEST(StateShards, StateThatOneRankHasLoaded) {
  if (size() == 1) GTEST_SKIP() << "that is all ranks";
  const Scalars scalars(4);
  Sgd optimizer(optim::SGD(scalars.all, momentum()), scalars.named, shards());
  const std::string before_any_step = archive_of(optimizer);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    scalars.backward();
    optimizer.step();
  }
  optimizer.consolidate_state(0);
  if (rank() == 0) {
    const std::string bytes = archive_of(optimizer);
    load_from(optimizer, bytes);
  }
  EXPECT_THAT(error_of([&] { optimizer.consolidate_state(1); }),
              HasSubstr("rank 0 has loaded state since the last step"));
  scalars.backward();
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("loaded since the last step"));
  // Loads a file without state, so that none is left on any rank.
  if (rank() == 0) {
    optimizer.state().clear();
    load_from(optimizer, before_any_step);
  }
  broadcast_optimizer_state(optimizer, 0);
  EXPECT_TRUE(optimizer.state().empty());
  optimizer.zero_grad();
  const std::vector<double> before = scalars.values();
  scalars.backward();
  optimizer.step();
  EXPECT_EQ(scalars.values()[3], before[3] - 0.5);
}

TEST(StateShards, AnErrorOfOneRankBehindTheReductionFailsTheStepOfAll) {
  if (size() == 1) GTEST_SKIP() << "nobody waits";
  const Scalars scalars(4);
  DistributedOptimizerOptions options = shards();
  options.wait_in = WaitIn::Step;
  Sgd optimizer(optim::SGD(scalars.all, momentum()), scalars.named, options);
  bool fails = rank() == 0;
  optimizer.after_bucket([&](const BucketView&) {
    if (fails) throw Error(ErrorCode::InvalidArgument, "no ink left");
  });
  scalars.backward();
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("no ink left"));
  EXPECT_EQ(scalars.values(), (std::vector<double>{1, 1, 1, 1}));
  fails = false;
  optimizer.zero_grad();
  scalars.backward();
  optimizer.step();
  EXPECT_EQ(scalars.values(), (std::vector<double>{0.875, 0.75, 0.625, 0.5}));
}

// A backward() between synchronize() and step(), which is reduced or not.
TEST(StateShards, AGradientOfOneRankBehindSynchronizeFailsTheStepOfAll) {
  if (size() == 1) GTEST_SKIP() << "nobody waits";
  for (const bool reduces : {false, true}) {
    for (const bool gradients : {false, true}) {
      const Scalars scalars(4);
      DistributedOptimizerOptions options = shards();
      options.wait_in = WaitIn::Step;
      options.shard_gradients = gradients;
      Sgd optimizer(optim::SGD(scalars.all, momentum()), scalars.named, options);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        scalars.backward();
        optimizer.synchronize();
        if (rank() == 0 && reduces) scalars.backward();
        if (rank() == 0 && !reduces) {
          const auto quiet = optimizer.no_sync();
          scalars.backward();
        }
        EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("it changed after synchronize"));
        EXPECT_EQ(scalars.values(), (std::vector<double>{1, 1, 1, 1}));
        optimizer.synchronize();
      }
      optimizer.zero_grad();
      scalars.backward();
      optimizer.synchronize();
      optimizer.step();
      EXPECT_EQ(scalars.values(), (std::vector<double>{0.875, 0.75, 0.625, 0.5}));
    }
  }
}

// One rank is given a parameter that can't be reduced. It keeps no other rank waiting, and the
// parameter has no part in who owns what from then on.
TEST(StateShards, AParameterThatOneRankCanNotAdd) {
  if (size() == 1) GTEST_SKIP() << "nobody waits";
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    for (const bool gradients : {false, true}) {
      Scalars scalars(3);
      DistributedOptimizerOptions options = shards();
      options.wait_in = wait_in;
      options.shard_gradients = gradients;
      Sgd optimizer(optim::SGD(scalars.all, momentum()), scalars.named, options);
      scalars.backward();
      std::vector<at::Tensor>& parameters = optimizer.param_groups().front().params();
      const at::Tensor refused = at::zeros({4}, at::kComplexHalf).requires_grad_();
      if (rank() == 0) parameters.push_back(refused);
      EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("ComplexHalf"));
      EXPECT_EQ(scalars.values(), (std::vector<double>{1, 1, 1}));
      if (rank() == 0) parameters.pop_back();
      for (int i = 0; i < 2; ++i) {
        scalars.all.push_back(at::ones({1}).set_requires_grad(true));
        optimizer.add_param_group(optim::OptimizerParamGroup({scalars.all.back()}));
      }
      optimizer.zero_grad();
      scalars.backward();
      optimizer.step();
      EXPECT_EQ(scalars.values(), (std::vector<double>{0.875, 0.75, 0.625, 0.5, 0.375}));
    }
  }
}

// An error of the ranks that share the state is told to the others, which wait for a broadcast.
TEST(StateShards, AnErrorOfSomeRanksIsToldToTheWholeBroadcast) {
  if (size() < 3) GTEST_SKIP() << "needs 3 ranks";
  const ProcessSet set = add_process_set({0, 1});
  const Scalars scalars(4);
  DistributedOptimizerOptions options = shards();
  options.process_set = set;
  DistributedOptimizer optimizer(Fails(scalars.all, momentum()), scalars.named, options);
  scalars.backward();
  optimizer.step();
  optimizer.fails_to_save = rank() == 1;
  EXPECT_THAT(error_of([&] { broadcast_optimizer_state(optimizer, 0); }),
              HasSubstr("can't be saved"));
  optimizer.fails_to_save = false;
  broadcast_optimizer_state(optimizer, 0);
  remove_process_set(set);
}

}  // namespace
}  // namespace horon::state_shards_faults_test
