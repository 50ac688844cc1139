// A schedule that goes on with a global batch of another size.
#include <limits>
#include <sstream>

#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "horon/tests/support/error_of.h"
#include "horon/torch_bindings/lr/lr_scheduler.h"

namespace horon::resumed_schedule_test {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
namespace optim = ::torch::optim;

at::Tensor parameter() { return at::ones({2}).requires_grad_(true); }

TEST(LrScheduler, GoesOnWithOtherBaseLearningRates) {
  const auto half_way = [](double position) { return 1 - position / 10; };
  std::stringstream archive;
  {
    optim::SGD of_four_ranks({parameter()}, optim::SGDOptions(0.4));
    LrScheduler scheduler(of_four_ranks, half_way);
    scheduler.set_steps(5);
    torch::save(scheduler, archive);
  }
  optim::SGD of_two_ranks({parameter()}, optim::SGDOptions(0.2));
  LrScheduler scheduler(of_two_ranks, half_way);
  torch::load(scheduler, archive);
  EXPECT_THAT(scheduler.learning_rates(), ElementsAre(0.4 * 0.5)) << "as it was saved";
  scheduler.scale_base_learning_rates(2.0 / 4);
  EXPECT_THAT(scheduler.base_learning_rates(), ElementsAre(0.2));
  EXPECT_THAT(scheduler.learning_rates(), ElementsAre(0.2 * 0.5));
  EXPECT_EQ(scheduler.steps(), 5);
  scheduler.step();
  EXPECT_THAT(scheduler.learning_rates(), ElementsAre(testing::DoubleEq(0.2 * 0.4)));

  // A group that has come since has its own learning rate, which is scaled too.
  of_two_ranks.add_param_group(
      optim::OptimizerParamGroup({parameter()}, std::make_unique<optim::SGDOptions>(1.0)));
  scheduler.scale_base_learning_rates(3);
  EXPECT_THAT(scheduler.base_learning_rates(), ElementsAre(testing::DoubleEq(0.6), 3));
  for (const double bad : {-1.0, std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(error_of([&] { scheduler.scale_base_learning_rates(bad); }),
                HasSubstr("the factor of base"));
  }
  EXPECT_THAT(scheduler.base_learning_rates(), ElementsAre(testing::DoubleEq(0.6), 3));
}

// A schedule that gives no learning rate leaves the scheduler as it was.
TEST(LrScheduler, ThatCanNotGoOnStaysAsItWas) {
  optim::SGD larger({parameter()}, optim::SGDOptions(0.4)), optimizer({parameter()}, 0.2);
  LrScheduler saved(larger, [](double /*position*/) { return 1; });
  saved.set_steps(5);
  std::stringstream archive;
  torch::save(saved, archive);
  double last = 3;
  LrScheduler scheduler(optimizer, [&](double position) { return last - position; });
  scheduler.set_steps(1);
  EXPECT_THAT(error_of([&] { torch::load(scheduler, archive); }), HasSubstr("gives -2"));
  last = 0;
  EXPECT_THAT(error_of([&] { scheduler.set_base_learning_rates({7}); }), HasSubstr("gives -1"));
  EXPECT_THAT(scheduler.base_learning_rates(), ElementsAre(0.2));
  EXPECT_EQ(scheduler.steps(), 1);
  last = 3;
  scheduler.step();
  EXPECT_THAT(scheduler.learning_rates(), ElementsAre(0.2));
}

// The state is saved before the scheduler has stepped with the new group.
TEST(LrScheduler, GoesOnWithAGroupThatHasJustBeenAdded) {
  const auto half = [](double position) { return position < 1 ? 1.0 : 0.5; };
  const auto with_group = [](optim::SGD& optimizer) {
    optimizer.add_param_group(
        optim::OptimizerParamGroup({parameter()}, std::make_unique<optim::SGDOptions>(1.0)));
  };
  std::stringstream archive;
  {
    optim::SGD optimizer({parameter()}, optim::SGDOptions(0.4));
    LrScheduler scheduler(optimizer, half);
    scheduler.step();
    with_group(optimizer);
    torch::save(scheduler, archive);
  }
  optim::SGD optimizer({parameter()}, optim::SGDOptions(0.2));
  with_group(optimizer);
  LrScheduler scheduler(optimizer, half);
  torch::load(scheduler, archive);
  EXPECT_THAT(scheduler.base_learning_rates(), ElementsAre(0.4, 1.0));
  EXPECT_THAT(scheduler.learning_rates(), ElementsAre(0.2, 0.5));
}

TEST(LrScheduler, GivesANewGroupItsRateInTheNextStepOrWhenItIsAsked) {
  optim::SGD optimizer({parameter()}, optim::SGDOptions(0.4));
  LrScheduler scheduler(optimizer, [](double position) { return 1 / (1 + position); });
  scheduler.step();
  const auto add_group = [&] {
    optimizer.add_param_group(
        optim::OptimizerParamGroup({parameter()}, std::make_unique<optim::SGDOptions>(1.0)));
  };
  add_group();
  EXPECT_THAT(scheduler.learning_rates(), ElementsAre(0.2, 1.0));
  scheduler.set_steps(scheduler.steps());
  EXPECT_THAT(scheduler.learning_rates(), ElementsAre(0.2, 0.5));
  add_group();
  scheduler.step();
  EXPECT_THAT(scheduler.base_learning_rates(), ElementsAre(0.4, 1.0, 1.0));
  EXPECT_EQ(scheduler.learning_rates()[1], scheduler.learning_rates()[2]);
}

}  // namespace
}  // namespace horon::resumed_schedule_test
