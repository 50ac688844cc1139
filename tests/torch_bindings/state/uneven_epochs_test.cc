// Epochs of different lengths on the ranks, join(), and the recipe of the page: the replicas stay
// alike, with all that a step or a decision changes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/guards/best_checkpoint.h"
#include "horon/torch_bindings/guards/early_stopping.h"
#include "horon/torch_bindings/lr/ada_scale.h"
#include "horon/torch_bindings/modules/sync_batch_norm.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon::uneven_epochs_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

using Sgd = DistributedOptimizer<::torch::optim::SGD>;

::torch::nn::Sequential make_model() {
  ::torch::nn::Sequential model(::torch::nn::Linear(4, 8),
                                SyncBatchNorm(::torch::nn::BatchNormOptions(8)),
                                ::torch::nn::Linear(8, 2));
  broadcast_parameters(*model, 0);
  return model;
}

at::Tensor loss_of(::torch::nn::Sequential& model) {
  return model->forward(at::randn({6, 4})).square().mean();
}

::torch::optim::SGD sgd_of(::torch::nn::Sequential& model) {
  return ::torch::optim::SGD(model->parameters(), ::torch::optim::SGDOptions(0.05).momentum(0.9));
}

template <class Value>
void expect_alike(const Value& own) {
  EXPECT_THAT(allgather_object(own), testing::Each(broadcast_object(own)));
}

// In each epoch a rank has one step more than the rank before it. What was not taken over shows in
// the first steps of the next epoch, which all ranks make.
template <class Step, class TakeOver>
void train(::torch::nn::Sequential& model, Sgd& optimizer, const Step& step,
           const TakeOver& take_over) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int i = 0; i < 2 + rank(); ++i) {
      optimizer.zero_grad();
      step(epoch * 10 + i);
      if (i == 1) check_replicas_equal(*model);
    }
    const int last = join();
    broadcast_state(*model, last);
    broadcast_state(optimizer, last);
    take_over(last);
  }
}

TEST(UnevenEpochs, WithLossScaleScheduleAndGuards) {
  ::torch::nn::Sequential model = make_model();
  Sgd optimizer(sgd_of(model), *model);
  LrScheduler scheduler(optimizer, [](double position) { return 1 / (1 + position); });
  amp::GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  EarlyStopping stopping({.agree_on = AgreeOn::Mean, .patience = 100});
  BestCheckpoint best({.agree_on = AgreeOn::Mean, .keep = 3});
  train(
      model, optimizer,
      [&](int step) {
        const at::Tensor loss = loss_of(model);
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        scheduler.step();
        stopping.check(loss.item<double>());
        best.judge(step, loss.item<double>());
      },
      [&](int last) {
        broadcast_state(scheduler, last);
        broadcast_state(scaler, last);
        broadcast_state(stopping, last);
        broadcast_state(best, last);
        expect_alike(scheduler.steps());
        expect_alike(scaler.get_scale());
        expect_alike(static_cast<int64_t>(scaler.growth_tracker()));
        expect_alike(stopping.state().checks);
        expect_alike(stopping.best());
        expect_alike(best.kept().front().step);
      });
  EXPECT_EQ(scheduler.steps(), 3 * (size() + 1));
  EXPECT_EQ(stopping.state().checks, 3 * (size() + 1));
  EXPECT_EQ(best.kept().size(), 3U);
}

TEST(UnevenEpochs, WithAdaScale) {
  ::torch::nn::Sequential model = make_model();
  Sgd optimizer(sgd_of(model), *model);
  AdaScale ada_scale(optimizer, [](double position) { return 1 / (1 + position); });
  train(
      model, optimizer,
      [&](int /*step*/) {
        loss_of(model).backward();
        ada_scale.step();
      },
      [&](int last) {
        broadcast_state(ada_scale, last);
        expect_alike(ada_scale.position());
        expect_alike(ada_scale.gain());
      });
  EXPECT_EQ(ada_scale.steps(), 3 * (size() + 1));
}

TEST(UnevenEpochs, WithoutTheScheduleOfTheLastRankReplicasGoApart) {
  ::torch::nn::Sequential model = make_model();
  Sgd optimizer(sgd_of(model), *model);
  LrScheduler scheduler(optimizer, [](double position) { return 1 / (1 + position); });
  const auto train_without = [&] {
    train(
        model, optimizer,
        [&](int /*step*/) {
          loss_of(model).backward();
          optimizer.step();
          scheduler.step();
        },
        [](int /*last*/) {});
  };
  EXPECT_THAT(error_of(train_without), StartsWith("mismatch: "));
}

TEST(BroadcastState, NamesWhatIsWrongOnAllRanks) {
  EarlyStopping stopping;
  amp::GradScaler scaler;
  EXPECT_THAT(error_of([&] { broadcast_state(stopping, size()); }),
              AllOf(StartsWith("invalid argument: broadcast_state: "), HasSubstr("root")));
  EXPECT_THAT(
      error_of([&] { rank() == 0 ? broadcast_state(stopping, 0) : broadcast_state(scaler, 0); }),
      AllOf(StartsWith("mismatch: broadcast_state: the type of rank 0 differs on"),
            HasSubstr("GradScaler")));
  struct Unsaved {
    void save(::torch::serialize::OutputArchive& /*archive*/) const {
      throw Error(ErrorCode::OperationFailed, "there is nothing to save");
    }
    void load(::torch::serialize::InputArchive& /*archive*/) {}
  } unsaved;
  EXPECT_EQ(error_of([&] { broadcast_state(unsaved, size() - 1); }),
            "failed: broadcast_state: on rank " + std::to_string(size() - 1) +
                ": there is nothing to save");
  if (rank() != 0) {
    EXPECT_THAT(error_of([&] { broadcast_state(stopping, 0); }),
                StartsWith("rank left: broadcast_state: rank 0 has joined"));
  }
  join();
}

TEST(BroadcastState, WithinAProcessSet) {
  const ProcessSet set = add_process_set({0, 1});
  if (set.includes_me()) {
    BestCheckpoint best({.process_set = set});
    if (rank() == 1) best.set_kept({{.step = 7, .value = 0.25}, {.step = 3, .value = 0.5}});
    broadcast_state(best, 1, set);
    ASSERT_EQ(best.kept().size(), 2U);
    EXPECT_EQ(best.kept()[0].step, 7);
    EXPECT_EQ(best.kept()[1].value, 0.5);
  }
  remove_process_set(set);
}

}  // namespace
}  // namespace horon::uneven_epochs_test
