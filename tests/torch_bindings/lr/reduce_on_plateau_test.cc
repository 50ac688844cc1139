// A learning rate that falls where a value no longer improves: by the rule of PyTorch, at the same
// check on all ranks.
#include "horon/torch_bindings/lr/reduce_on_plateau.h"

#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::reduce_on_plateau_test {
namespace {

namespace optim = ::torch::optim;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;
using Rates = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

optim::SGD sgd(const Rates& rates) {
  std::vector<optim::OptimizerParamGroup> groups;
  for (const double rate : rates) {
    groups.emplace_back(std::vector<at::Tensor>{at::ones({2}).requires_grad_(true)},
                        std::make_unique<optim::SGDOptions>(rate));
  }
  return optim::SGD(groups, optim::SGDOptions(rates.front()));
}

Rates rates_of(const optim::Optimizer& optimizer) {
  Rates rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

// Each rank has another value, and their mean is this one.
double share_of(double value) { return value + rank() - (size() - 1) / 2.0; }

// The rates of all groups behind each check.
std::vector<Rates> rates_behind(const std::vector<double>& values, ReduceLrOnPlateauOptions options,
                                const Rates& rates = {1}) {
  auto optimizer = sgd(rates);
  ReduceLrOnPlateau plateau(optimizer, std::move(options));
  std::vector<Rates> behind = {rates};
  for (const double value : values) {
    const bool lowered = plateau.step(share_of(value));
    behind.push_back(rates_of(optimizer));
    EXPECT_EQ(lowered, behind.back() != *(behind.end() - 2));
  }
  behind.erase(behind.begin());
  return behind;
}

// Those of one group.
Rates single(const std::vector<double>& values, ReduceLrOnPlateauOptions options) {
  Rates single;
  for (const Rates& rates : rates_behind(values, std::move(options))) single.push_back(rates[0]);
  return single;
}

// What torch.optim.lr_scheduler.ReduceLROnPlateau of PyTorch 2.11 does with these values and eps=0.
TEST(ReduceLrOnPlateau, IsPyTorchsRule) {
  constexpr auto kAbsolute = ThresholdMode::Absolute;
  EXPECT_EQ(
      single({4, 3, 3.5, 3, 2.75, 3, 3, 3, 3, 3}, {.factor = 0.5, .patience = 1, .threshold = 0}),
      (Rates{1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125}));
  EXPECT_EQ(single({3, 2, 2.0002, 1.9999, 1.9997, 1.9996}, {.factor = 0.5, .patience = 0}),
            (Rates{1, 1, 0.5, 0.25, 0.25, 0.125}));
  EXPECT_EQ(
      single({100, 91, 90, 89.5, 80, 81, 82, 83}, {.factor = 0.5, .patience = 0, .threshold = 0.1}),
      (Rates{1, 0.5, 0.25, 0.25, 0.25, 0.125, 0.0625, 0.03125}));
  EXPECT_EQ(single({100, 95, 94.5, 94.25, 90, 90, 90},
                   {.factor = 0.5, .patience = 0, .threshold = 5, .threshold_mode = kAbsolute}),
            (Rates{1, 0.5, 0.5, 0.25, 0.125, 0.0625, 0.03125}));
  EXPECT_EQ(single({1, 1.125, 1.25, 1.3, 1.2, 2, 0.5},
                   {.better = Better::Higher, .factor = 0.5, .patience = 0, .threshold = 0.125}),
            (Rates{1, 0.5, 0.5, 0.25, 0.125, 0.125, 0.0625}));
  EXPECT_EQ(single({1, 1.125, 1.25, 1.3, 1.2, 2, 2.25}, {.better = Better::Higher,
                                                         .factor = 0.5,
                                                         .patience = 0,
                                                         .threshold = 0.125,
                                                         .threshold_mode = kAbsolute}),
            (Rates{1, 0.5, 0.5, 0.25, 0.125, 0.125, 0.125}));
  EXPECT_EQ(single(std::vector<double>(10, 1), {.factor = 0.5, .patience = 1, .cooldown = 2}),
            (Rates{1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25}));
  EXPECT_EQ(
      single({1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5}, {.factor = 0.5, .patience = 0, .cooldown = 1}),
      (Rates{1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625, 0.0625}));
  EXPECT_EQ(single({kNan, kInf, 5, kNan, kNan, 4, kNan}, {.factor = 0.5, .patience = 1}),
            (Rates{1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25}));
  EXPECT_EQ(single({-kInf, -kInf, kNan, kInf, 1},
                   {.better = Better::Higher, .factor = 0.5, .patience = 1}),
            (Rates{1, 0.5, 0.5, 0.5, 0.5}));
}

TEST(ReduceLrOnPlateau, HasPyTorchsDefaultsAndLeastRates) {
  Rates by_default(24, 1);
  for (size_t i = 11; i < 22; ++i) by_default[i] = 0.1;
  by_default[22] = by_default[23] = 0.1 * 0.1;
  EXPECT_EQ(single(std::vector<double>(24, 1), {}), by_default);
  const std::vector<double> ones(6, 1);
  EXPECT_THAT(rates_behind(ones, {.factor = 0.25, .patience = 0, .min_lr = {0.1, 0.2}}, {1, 0.5}),
              ElementsAre(Rates{1, 0.5}, Rates{0.25, 0.2}, Rates{0.1, 0.2}, Rates{0.1, 0.2},
                          Rates{0.1, 0.2}, Rates{0.1, 0.2}));
  // One that is below it already stays.
  EXPECT_THAT(rates_behind(ones, {.factor = 0.25, .patience = 0, .min_lr = {0.05}}, {1, 0.01}),
              ElementsAre(Rates{1, 0.01}, Rates{0.25, 0.01}, Rates{0.0625, 0.01}, Rates{0.05, 0.01},
                          Rates{0.05, 0.01}, Rates{0.05, 0.01}));
  EXPECT_EQ(single({1, 1, 1}, {.factor = 0, .patience = 0, .min_lr = {0.125}}),
            (Rates{1, 0.125, 0.125}));
}

TEST(ReduceLrOnPlateau, LowersWhatAScheduleMultiplies) {
  auto optimizer = sgd({0.5, 0.25});
  LrScheduler scheduler(optimizer, lr::warm_up(4, 0));
  ReduceLrOnPlateau plateau(scheduler, {.factor = 0.5, .patience = 0});
  scheduler.set_steps(2);
  EXPECT_FALSE(plateau.step(3));
  EXPECT_EQ(rates_of(optimizer), (Rates{0.25, 0.125})) << "half way";
  EXPECT_TRUE(plateau.step(3));
  EXPECT_EQ(scheduler.base_learning_rates(), (Rates{0.25, 0.125}));
  EXPECT_EQ(rates_of(optimizer), (Rates{0.125, 0.0625}));
  scheduler.set_steps(100);
  EXPECT_EQ(rates_of(optimizer), (Rates{0.25, 0.125}));
  optimizer.add_param_group({{at::ones({1}).requires_grad_(true)}});  // of the default, 0.5
  EXPECT_TRUE(plateau.step(3));
  EXPECT_EQ(rates_of(optimizer), (Rates{0.125, 0.0625, 0.25}));
}

TEST(ReduceLrOnPlateau, GoesOnFromAnArchive) {
  const std::vector<double> values = {4, 4, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2};
  const ReduceLrOnPlateauOptions options{.factor = 0.5, .patience = 1, .cooldown = 2};
  const std::vector<Rates> straight = rates_behind(values, options);
  for (size_t stop = 0; stop < values.size(); ++stop) {
    std::stringstream archive;
    auto first = sgd({1});
    ReduceLrOnPlateau saved(first, options);
    for (size_t i = 0; i < stop; ++i) saved.step(values[i]);
    ::torch::save(saved, archive);
    auto second = sgd({1});
    ReduceLrOnPlateau loaded(second, options);
    ::torch::load(loaded, archive);
    EXPECT_EQ(rates_of(second), rates_of(first));
    EXPECT_EQ(loaded.checks(), static_cast<int64_t>(stop));
    for (size_t i = stop; i < values.size(); ++i) {
      loaded.step(values[i]);
      EXPECT_EQ(rates_of(second), straight[i]) << stop << ", " << i;
    }
    EXPECT_EQ(loaded.best(), 2);
  }
}

TEST(ReduceLrOnPlateau, LoadsNothingElse) {
  auto optimizer = sgd({1, 0.5});
  ReduceLrOnPlateau plateau(optimizer);
  plateau.step(3);
  std::stringstream of_tensor, of_one_group;
  ::torch::save(at::ones({2}), of_tensor);
  EXPECT_THAT(error_of([&] { ::torch::load(plateau, of_tensor); }),
              HasSubstr("ReduceLrOnPlateau: the archive holds no state of a ReduceLrOnPlateau"));
  auto smaller = sgd({0.125});
  ::torch::save(ReduceLrOnPlateau(smaller), of_one_group);
  EXPECT_THAT(error_of([&] { ::torch::load(plateau, of_one_group); }),
              HasSubstr("1 base learning rates for 2 parameter groups"));
  EXPECT_EQ(plateau.best(), 3);
  EXPECT_EQ(rates_of(optimizer), (Rates{1, 0.5}));
}

TEST(ReduceLrOnPlateau, OfTheRanksOfASet) {
  if (size() < 3) return;
  const ProcessSet set = add_process_set({1, 2});
  auto optimizer = sgd({1});
  if (set.includes_me()) {
    ReduceLrOnPlateau plateau(optimizer, {.process_set = set, .patience = 0});
    EXPECT_FALSE(plateau.step(rank() * 10));
    EXPECT_EQ(plateau.best(), 15);
    EXPECT_TRUE(plateau.step(rank() * 20));
  }
  EXPECT_EQ(rates_of(optimizer), Rates{set.includes_me() ? 0.1 : 1.0});
  remove_process_set(set);
}

// Ranks that come back from join() have missed the reductions of the others.
TEST(ReduceLrOnPlateau, GoesOnBehindAJoinWhereTheLastRankIs) {
  auto optimizer = sgd({1});
  LrScheduler scheduler(optimizer, lr::constant());
  ReduceLrOnPlateau plateau(scheduler, {.factor = 0.5, .patience = 0});
  for (int i = 0; i < 2 + rank(); ++i) plateau.step(1);
  join();
  plateau.step(1);
  EXPECT_EQ(plateau.checks(), 2 + size());
  const double all_made = std::ldexp(1.0, -1 - size());
  EXPECT_EQ(rates_of(optimizer), Rates{all_made});
  EXPECT_THAT(allgather_object(scheduler.base_learning_rates()[0]), Each(all_made));
}

TEST(ReduceLrOnPlateau, WhatRanksHaveOtherwiseIsAnErrorOnAllOfThem) {
  if (size() == 1) return;
  auto optimizer = sgd({rank() == 1 ? 0.5 : 1});
  ReduceLrOnPlateau plateau(optimizer, {.name = "plateau", .patience = 0});
  EXPECT_THAT(error_of([&] { plateau.step(1); }),
              AllOf(StartsWith("mismatch: \"plateau\": rank 1 has a different state from rank 0"),
                    HasSubstr("broadcast_state()")));
  EXPECT_EQ(plateau.checks(), 0);
  broadcast_state(plateau, 0);
  EXPECT_FALSE(plateau.step(1));
  EXPECT_EQ(rates_of(optimizer), Rates{1});
  const double factor = rank() == 1 ? 0.5 : 0.25;
  ReduceLrOnPlateau other(optimizer, {.name = "other", .factor = factor, .min_lr = {0.125}});
  EXPECT_THAT(
      error_of([&] { other.step(1); }),
      AllOf(StartsWith("mismatch: \"other\": the options of the ranks differ"),
            HasSubstr("rank 1 has agree_on Mean, better Lower, factor 0.5, patience 10, threshold "
                      "0.0001 (Relative), cooldown 0, min_lr 0.125")));
}

TEST(ReduceLrOnPlateau, WrongOptions) {
  const auto error_with = [](ReduceLrOnPlateauOptions options) {
    return error_of([&] {
      auto optimizer = sgd({1, 0.5});
      ReduceLrOnPlateau(optimizer, std::move(options));
    });
  };
  const std::string begin = "invalid argument: ReduceLrOnPlateau: ";
  EXPECT_THAT(error_with({.factor = 1}), StartsWith(begin + "factor is 1; give one from 0 to"));
  EXPECT_THAT(error_with({.factor = kNan}), StartsWith(begin + "factor is nan"));
  EXPECT_THAT(error_with({.patience = -1}), StartsWith(begin + "patience is -1; give 0 or more"));
  EXPECT_THAT(error_with({.cooldown = -1}), StartsWith(begin + "cooldown is -1; give 0 or more"));
  EXPECT_THAT(error_with({.threshold = -1}), StartsWith(begin + "threshold is -1; give 0 or more"));
  EXPECT_THAT(error_with({.threshold = 1}), StartsWith(begin + "threshold is 1 of the best value"));
  EXPECT_EQ(error_with({.better = Better::Higher, .threshold = 1}), "no error");
  EXPECT_THAT(error_with({.min_lr = {}}), StartsWith(begin + "min_lr is empty"));
  EXPECT_THAT(error_with({.min_lr = {0, -1}}), StartsWith(begin + "min_lr is -1"));
  EXPECT_THAT(error_with({.min_lr = {0, 0, 0}}),
              StartsWith(begin + "min_lr has 3 numbers for 2 parameter groups"));
}

}  // namespace
}  // namespace horon::reduce_on_plateau_test
