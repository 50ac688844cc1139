// Schedules are functions of the position: against their formulas, written out, and against
// numbers of PyTorch's schedulers.
#include "horon/torch_bindings/lr/schedule.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/support/error_of.h"

namespace horon::schedule_test {
namespace {

using namespace lr;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

using Points = std::vector<std::pair<double, double>>;  // position, factor

void expect_factors(const Schedule& schedule, const Points& points) {
  for (const auto& [position, factor] : points) {
    EXPECT_NEAR(schedule(position), factor, 1e-15) << "at " << position;
  }
}

TEST(Schedule, WarmUp) {
  expect_factors(warm_up(4, 0.2), {{0, 0.2}, {1, 0.4}, {2.5, 0.7}, {4, 1}, {1000, 1}});
  expect_factors(warm_up(10, 0), {{0, 0}, {1, 0.1}, {10, 1}});
}

TEST(Schedule, Cosine) {
  const double root = std::sqrt(2) / 2;  // cos(pi / 4)
  expect_factors(cosine(8), {{0, 1}, {2, (1 + root) / 2}, {4, 0.5}, {6, (1 - root) / 2}, {8, 0}});
  expect_factors(cosine(8, 0.2), {{0, 1}, {4, 0.6}, {8, 0.2}, {9, 0.2}});
}

TEST(Schedule, Polynomial) {
  expect_factors(polynomial(4), {{0, 1}, {1, 0.75}, {4, 0}, {5, 0}});
  expect_factors(polynomial(4, 2), {{0, 1}, {1, 0.5625}, {3, 0.0625}, {4, 0}});
  expect_factors(polynomial(4, 3, 0.5), {{0, 1}, {2, 0.5625}, {7, 0.5}});
}

TEST(Schedule, Steps) {
  // Multiples that division does not find: 0.3 / 0.1 is less than 3.
  for (int step = 0; step < 200; ++step) {
    EXPECT_EQ(step_decay(0.1, 0.5)(step / 10.0), std::pow(0.5, step)) << step;
    EXPECT_EQ(step_decay(0.1, 0.5)((step + 0.999) / 10.0), std::pow(0.5, step)) << step;
  }
  expect_factors(step_decay(3, 0.5), {{0, 1}, {2.9, 1}, {3, 0.5}, {8, 0.25}, {9, 0.125}});
  expect_factors(multi_step({2, 5}, 0.1), {{0, 1}, {1.99, 1}, {2, 0.1}, {4, 0.1}, {5, 0.01}});
  expect_factors(multi_step({}, 0.1), {{0, 1}, {100, 1}});
  // And those that count from a milestone: 5.3 - 5 is less than 0.3.
  for (const int steps : {7, 10, 391, 1000}) {
    for (int step = 1; step < steps; ++step) {
      const double own = step / static_cast<double>(steps);
      for (const Schedule& falls : {multi_step({own}, 0.5), step_decay(own, 0.5),
                                    sequence({constant(1), constant(0.5)}, {own})}) {
        const Schedule all = sequence({constant(1), falls}, {5});
        EXPECT_EQ(all((5 * steps + step) / static_cast<double>(steps)), 0.5) << own;
        EXPECT_EQ(all((5 * steps + step - 1) / static_cast<double>(steps)), 1) << own;
      }
    }
  }
}

TEST(Schedule, ExponentialAndInverseSquareRoot) {
  expect_factors(exponential(0.5), {{0, 1}, {1, 0.5}, {1.5, std::sqrt(0.125)}, {3, 0.125}});
  expect_factors(inverse_square_root(4), {{0, 1}, {5, 2.0 / 3}, {12, 0.5}});
  // "Attention is all you need": min(t^-1/2, t w^-3/2), here as a factor of its peak at t = w.
  const double w = 9;
  const Schedule vaswani = sequence({warm_up(w, 0), inverse_square_root(w)}, {w});
  for (const double t : {1.0, 8.0, 9.0, 10.0, 400.0}) {
    const double formula = std::min(1 / std::sqrt(t), t * std::pow(w, -1.5)) * std::sqrt(w);
    EXPECT_NEAR(vaswani(t), formula, 1e-15) << t;
  }
}

TEST(Schedule, OneCycle) {
  const OneCycle two{.length = 10, .peak = 4, .start = 0.2, .end = 0.1};
  const double eighth = (1 - std::sqrt(2) / 2) / 2;  // of a half wave, a quarter of its way
  expect_factors(one_cycle(two), {{0, 0.2},
                                  {1, 0.2 + 0.8 * eighth},
                                  {2, 0.6},
                                  {4, 1},
                                  {5.5, 1 - 0.9 * eighth},
                                  {7, 0.55},
                                  {10, 0.1},
                                  {11, 0.1}});
  OneCycle three = two;
  three.three_phases = true;
  three.linear = true;
  expect_factors(one_cycle(three), {{1, 0.4}, {4, 1}, {5, 0.8}, {8, 0.2}, {9, 0.15}, {10, 0.1}});
  expect_factors(one_cycle_momentum(three, 0.9, 0.8),
                 {{0, 0.9}, {2, 0.85}, {4, 0.8}, {6, 0.85}, {8, 0.9}, {10, 0.9}});
}

TEST(Schedule, Sequence) {
  const Schedule own = [](double position) { return 10 + position; };
  const Schedule all = sequence({warm_up(2, 0.5), constant(), own, exponential(0.5)}, {2, 5, 6.5});
  expect_factors(all,
                 {{0, 0.5}, {1, 0.75}, {2, 1}, {4.9, 1}, {5, 10}, {6, 11}, {6.5, 1}, {8.5, 0.25}});
  const Schedule nested = sequence({constant(2), all}, {100});
  expect_factors(nested, {{99, 2}, {100, 0.5}, {101, 0.75}, {106, 11}});
}

// What PyTorch 2.11 gives for a learning rate of 1:
//
//   o = torch.optim.SGD([w], lr=1.0, momentum=0.9)
//   for scheduler in (LinearLR(o, start_factor=0.25, total_iters=8),
//                     CosineAnnealingLR(o, T_max=20, eta_min=0.1), PolynomialLR(o, 10, power=2.0),
//                     StepLR(o, 4, 0.5), MultiStepLR(o, [3, 7], 0.1), ExponentialLR(o, 0.9),
//                     SequentialLR(o, [LinearLR(o, 0.25, total_iters=5), CosineAnnealingLR(o, 15)],
//                     [5]), OneCycleLR(o, max_lr=1.0, total_steps=100, pct_start=0.3),
//                     OneCycleLR(o, 1.0, total_steps=100, three_phase=True,
//                     anneal_strategy="linear")):
//       ...; o.step(); scheduler.step(); print(o.param_groups[0]["lr"], ...["momentum"])
//
// PyTorch's OneCycleLR lasts total_steps - 1, from its first to its last step; its peak is a step
// early.
TEST(Schedule, AsPyTorchs) {
  expect_factors(warm_up(8, 0.25), {{0, 0.25}, {3, 0.53125}, {8, 1}, {10, 1}});
  expect_factors(cosine(20, 0.1), {{0, 1},
                                   {1, 0.994459753267812},
                                   {7, 0.7542957248827961},
                                   {13, 0.34570427511720414},
                                   {20, 0.1}});
  expect_factors(polynomial(10, 2), {{0, 1}, {3, 0.49}, {9, 0.01}, {12, 0}});
  expect_factors(step_decay(4, 0.5), {{3, 1}, {4, 0.5}, {11, 0.25}, {12, 0.125}});
  expect_factors(multi_step({3, 7}, 0.1), {{2, 1}, {3, 0.1}, {6, 0.1}, {7, 0.01}});
  expect_factors(exponential(0.9), {{0, 1}, {1, 0.9}, {5, 0.59049}});
  expect_factors(sequence({warm_up(5, 0.25), cosine(15)}, {5}),
                 {{0, 0.25}, {4, 0.85}, {5, 1}, {12, 0.5522642316338268}, {20, 0}});
  OneCycle cycle{.length = 99, .peak = 29};
  expect_factors(
      one_cycle(cycle),
      {{0, 0.04}, {10, 0.29516394846410077}, {29, 1}, {60, 0.5892800902855287}, {99, 4e-06}});
  expect_factors(
      one_cycle_momentum(cycle),
      {{0, 0.95}, {10, 0.9234204220349895}, {29, 0.85}, {60, 0.8910721552600681}, {99, 0.95}});
  cycle.three_phases = true;
  cycle.linear = true;
  expect_factors(one_cycle(cycle), {{10, 0.37103448275862067},
                                    {29, 1},
                                    {40, 0.6358620689655172},
                                    {58, 0.04},
                                    {80, 0.018538731707317072},
                                    {99, 4e-06}});
  expect_factors(one_cycle_momentum(cycle), {{10, 0.9155172413793103}, {40, 0.8879310344827586}});
}

TEST(Schedule, WrongArguments) {
  EXPECT_THAT(error_of([] { warm_up(0, 1); }),
              AllOf(HasSubstr("warm_up: length is 0"), HasSubstr("above 0")));
  EXPECT_THAT(error_of([] { cosine(5, -0.1); }), HasSubstr("cosine: end is -0.1"));
  EXPECT_THAT(error_of([] { polynomial(std::nan("")); }), HasSubstr("is nan"));
  EXPECT_THAT(error_of([] { step_decay(-1); }), HasSubstr("every is -1"));
  EXPECT_THAT(error_of([] { exponential(std::numeric_limits<double>::infinity()); }),
              HasSubstr("gamma is inf"));
  EXPECT_THAT(error_of([] { multi_step({3, 3}); }), HasSubstr("milestone 3"));
  EXPECT_THAT(error_of([] { sequence({constant()}, {1}); }),
              HasSubstr("1 schedules with 1 milestones"));
  EXPECT_THAT(error_of([] { sequence({constant(), nullptr}, {1}); }), HasSubstr("null"));
  EXPECT_THAT(error_of([] { one_cycle({.length = 4, .peak = 4}); }),
              HasSubstr("no room for the second phase"));
  EXPECT_THAT(error_of([] { one_cycle({.length = 9, .peak = 5, .three_phases = true}); }),
              HasSubstr("no room for the third phase"));
}

}  // namespace
}  // namespace horon::schedule_test
