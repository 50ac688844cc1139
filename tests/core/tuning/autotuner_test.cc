#include "horon/core/tuning/autotuner.h"

#include <functional>

#include <gtest/gtest.h>

#include "horon/tests/core/tuning/tuning_surface.h"

namespace horon::core {
namespace {

using namespace testing_support;
using Stage = Autotuner::Stage;

struct TunedRun {
  size_t choice = 0;
  int steps = 0;
  std::vector<Autotuner::Sample> samples;
};

// Runs steps that take seconds(choice), until the tuner has finished. A change takes effect one
// step after it is wanted.
TunedRun run(Autotuner& tuner, const std::function<double(size_t choice)>& seconds) {
  TunedRun result;
  while (!tuner.finished() && result.steps < 20'000) {
    ++result.steps;
    if (const auto sample = tuner.step(seconds(result.choice))) result.samples.push_back(*sample);
    if (!tuner.awaits_change()) continue;
    (void)tuner.step(1e3);  // a step that does not count
    tuner.changed();
    result.choice = tuner.wanted();
  }
  EXPECT_TRUE(tuner.finished());
  return result;
}

TEST(Autotuner, FindsAFasterChoiceThroughNoise) {
  int found = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const std::vector<TuningPoint> choices = grid({0.1, 0.9});  // 1.74 times the least
    Autotuner tuner(choices, {});
    Noise noise(seed, 0.05);
    const TunedRun result =
        run(tuner, [&](size_t choice) { return noise(valley_s(choices[choice])); });
    EXPECT_EQ(result.choice, tuner.result().choice);
    EXPECT_EQ(result.samples.front().choice, 0U);
    EXPECT_TRUE(tuner.result().compared);
    EXPECT_GT(tuner.result().gain, tuner.result().noise);
    if (valley_s(choices[result.choice]) < 1.05 * 0.010) ++found;
  }
  EXPECT_GE(found, 19);
}

// Where no choice is faster, noise alone must not change the choice: the limit is 1 in 100 runs.
TEST(Autotuner, EndsAtTheStartWhereNothingIsFaster) {
  int left = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    Autotuner tuner(grid({0.5, 0.5}), {.samples = 10});
    Noise noise(seed, 0.1);
    left += run(tuner, [&](size_t) { return noise(0.01); }).choice == 0 ? 0 : 1;
  }
  EXPECT_LE(left, 3);
}

TEST(Autotuner, StaysWhereItIsTheBestPlace) {
  const std::vector<TuningPoint> choices = grid({0.7, 0.3});
  for (unsigned seed = 1; seed <= 10; ++seed) {
    Autotuner tuner(choices, {});
    Noise noise(seed, 0.03);
    const TunedRun result =
        run(tuner, [&](size_t choice) { return noise(valley_s(choices[choice])); });
    EXPECT_LE(valley_s(choices[result.choice]), valley_s(choices[0]) * 1.01) << seed;
  }
}

// The machine becomes slower all the time. The comparison measures in pairs, and so is not misled.
TEST(Autotuner, ADriftIsNoReasonToStayNorToLeave) {
  for (const bool valley : {true, false}) {
    const std::vector<TuningPoint> choices = grid({0.1, 0.9});
    Autotuner tuner(choices, {});
    Noise noise(1, 0.02);
    double slower = 1;
    const TunedRun result = run(tuner, [&](size_t choice) {
      slower *= 1.0002;
      return noise(slower * (valley ? valley_s(choices[choice]) : 0.01));
    });
    EXPECT_EQ(result.choice != 0, valley);
  }
}

TEST(Autotuner, StepsAfterAChangeDoNotCount) {
  Autotuner tuner({{0.0}, {1.0}}, {.samples = 2, .steps = 3, .seconds = 0, .warm_up = 2});
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(tuner.step(100));  // twice as many at the beginning
  EXPECT_FALSE(tuner.step(1));
  EXPECT_FALSE(tuner.step(5));
  const auto first = tuner.step(1);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->choice, 0U);
  EXPECT_EQ(first->steps, 3);
  EXPECT_DOUBLE_EQ(first->median_s, 1);
  EXPECT_DOUBLE_EQ(first->quartile_s, 1);  // quartiles 1 and 3
  EXPECT_EQ(tuner.wanted(), 1U);
  EXPECT_TRUE(tuner.awaits_change());
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(tuner.step(100));  // the other ranks do not know yet
  tuner.changed();
  EXPECT_FALSE(tuner.step(100));
  EXPECT_FALSE(tuner.step(100));
  EXPECT_FALSE(tuner.step(2));
  EXPECT_FALSE(tuner.step(2));
  tuner.discard();
  EXPECT_FALSE(tuner.step(100));
  EXPECT_FALSE(tuner.step(100));
  EXPECT_FALSE(tuner.step(3));
  EXPECT_FALSE(tuner.step(3));
  EXPECT_FALSE(tuner.step(0));  // the clock is too coarse
  const auto second = tuner.step(3);
  ASSERT_TRUE(second);
  EXPECT_DOUBLE_EQ(second->median_s, 3);
}

// Short steps are timed for a while: at least `seconds`, unless that takes too many.
TEST(Autotuner, ShortStepsAreTimedForAWhile) {
  const Autotuner::Options options{.samples = 3, .steps = 10, .seconds = 0.1, .warm_up = 0};
  Autotuner of_4_ms({{0.0}, {1.0}}, options);
  int steps = 1;
  while (!of_4_ms.step(0.004)) ++steps;
  EXPECT_EQ(steps, 25);
  Autotuner of_1_us({{0.0}, {1.0}}, options);
  for (steps = 1; !of_1_us.step(1e-6);) ++steps;
  EXPECT_EQ(steps, 50);
}

TEST(Autotuner, AKnownChoiceIsComparedAtOnce) {
  const std::vector<TuningPoint> choices = grid({0.1, 0.9}, 5);
  size_t best = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (valley_s(choices[i]) < valley_s(choices[best])) best = i;
  }
  Autotuner tuner(choices, {.steps = 3, .seconds = 0, .warm_up = 1}, best);
  const TunedRun result = run(tuner, [&](size_t choice) { return valley_s(choices[choice]); });
  EXPECT_EQ(result.choice, best);
  EXPECT_EQ(result.samples.size(), 12U);
  for (const auto& sample : result.samples) EXPECT_EQ(sample.stage, Stage::Comparison);
}

// What was good on another machine is bad here: the search follows, and finds something else.
TEST(Autotuner, AKnownChoiceThatDoesNotHelpLeadsToASearch) {
  const std::vector<TuningPoint> choices = grid({0.4, 0.4});
  size_t worst = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (valley_s(choices[i]) > valley_s(choices[worst])) worst = i;
  }
  Autotuner tuner(choices, {.steps = 10, .seconds = 0, .warm_up = 1}, worst);
  Noise noise(1, 0.01);
  const TunedRun result =
      run(tuner, [&](size_t choice) { return noise(valley_s(choices[choice])); });
  EXPECT_LT(valley_s(choices[result.choice]), 1.05 * 0.010);
  EXPECT_EQ(result.samples[12].stage, Stage::Search);
}

TEST(Autotuner, KnownToBeBestIsTheEnd) {
  Autotuner tuner(grid({0.7, 0.3}), {}, 0);
  EXPECT_TRUE(tuner.finished());
  EXPECT_FALSE(tuner.result().compared);
  EXPECT_TRUE(Autotuner({{0.5}}, {}).finished());
}

TEST(Autotuner, GivesUpFromAnywhere) {
  Autotuner tuner({{0.0}, {1.0}}, {.samples = 5, .steps = 1, .seconds = 0, .warm_up = 0});
  ASSERT_TRUE(tuner.step(1));
  ASSERT_EQ(tuner.wanted(), 1U);
  tuner.changed();
  tuner.give_up();
  EXPECT_EQ(tuner.wanted(), 0U);
  EXPECT_FALSE(tuner.finished());
  tuner.changed();
  EXPECT_TRUE(tuner.finished());
}

}  // namespace
}  // namespace horon::core
