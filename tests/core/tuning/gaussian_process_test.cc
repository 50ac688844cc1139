#include "horon/core/tuning/gaussian_process.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/tuning/expected_improvement.h"

namespace horon::core {
namespace {

TEST(GaussianKernel, IsMatern52) {
  const GaussianKernel kernel{0.5, 2, 0.1};
  EXPECT_DOUBLE_EQ(kernel.covariance({0.3, 0.4}, {0.3, 0.4}), 4);
  // At a distance of one length: (1 + sqrt(5) + 5/3) exp(-sqrt(5)) = 0.523994...
  EXPECT_NEAR(kernel.covariance({0, 0}, {0.3, 0.4}), 4 * 0.5239941088318203, 1e-12);
  EXPECT_LT(kernel.covariance({0}, {5}), 1e-6);
}

// With one measurement y at x0 the posterior has a closed form: k = cov(x, x0), v = s^2 + n^2,
// mean m + k / v * (y - m), variance s^2 - k^2 / v.
TEST(GaussianProcess, OneMeasurementByHand) {
  const GaussianKernel kernel{0.5, 2, 1};
  const std::vector<double> values{13};
  const GaussianProcess process({{0.0}}, values, 10, kernel);
  EXPECT_NEAR(process.at({0.0}).mean, 10 + 4.0 / 5 * 3, 1e-12);
  EXPECT_NEAR(process.at({0.0}).deviation, std::sqrt(4 - 16.0 / 5), 1e-12);
  const double k = 4 * 0.5239941088318203;
  EXPECT_NEAR(process.at({0.5}).mean, 10 + k / 5 * 3, 1e-12);
  EXPECT_NEAR(process.at({0.5}).deviation, std::sqrt(4 - k * k / 5), 1e-12);
  EXPECT_NEAR(process.at({9.0}).mean, 10, 1e-6);
  EXPECT_NEAR(process.at({9.0}).deviation, 2, 1e-6);
}

// Two measurements: the inverse of [[a, c], [c, a]] is [[a, -c], [-c, a]] / (a^2 - c^2).
TEST(GaussianProcess, TwoMeasurementsByHand) {
  const GaussianKernel kernel{0.5, 1, 0.5};
  const std::vector<double> values{1, -2};
  const GaussianProcess process({{0.0}, {0.5}}, values, 0, kernel);
  const double c = 0.5239941088318203;
  const double a = 1 + 0.25;
  const double k = kernel.covariance({0.25}, {0.0});  // to both
  const double determinant = a * a - c * c;
  const double w0 = (a * 1 - c * -2) / determinant;
  const double w1 = (-c * 1 + a * -2) / determinant;
  EXPECT_NEAR(process.at({0.25}).mean, k * (w0 + w1), 1e-12);
  EXPECT_NEAR(process.at({0.25}).deviation, std::sqrt(1 - 2 * k * k * (a - c) / determinant),
              1e-12);
  EXPECT_NEAR(process.at({0.0}).mean, w0 + c * w1, 1e-12);
}

// The same place measured twice is known better, and the mean of both counts.
TEST(GaussianProcess, RepetitionReducesNoise) {
  const GaussianKernel kernel{0.5, 1, 1};
  const std::vector<double> values{2, 4};
  const GaussianProcess process({{0.5}, {0.5}}, values, 0, kernel);
  // The same as one measurement of 3 with half the variance of noise.
  EXPECT_NEAR(process.at({0.5}).mean, 3 / 1.5, 1e-12);
  EXPECT_NEAR(process.at({0.5}).deviation, std::sqrt(1 - 1 / 1.5), 1e-12);
}

TEST(GaussianProcess, FitFindsTheNoiseAndTheShape) {
  std::mt19937 random(1);
  std::normal_distribution<double> noise(0, 0.05);
  std::vector<TuningPoint> points;
  std::vector<double> values;
  for (int i = 0; i <= 40; ++i) {
    const double x = i / 40.0;
    points.push_back({x});
    values.push_back(std::sin(6 * x) + noise(random));
  }
  const GaussianProcess process = GaussianProcess::fit(points, values);
  EXPECT_GT(process.kernel().noise, 0.02);
  EXPECT_LT(process.kernel().noise, 0.12);
  EXPECT_GT(process.kernel().length, 0.1);
  for (const double x : {0.11, 0.26, 0.52, 0.77}) {
    const Belief belief = process.at({x});
    EXPECT_NEAR(belief.mean, std::sin(6 * x), 0.06) << x;
    EXPECT_LT(belief.deviation, 0.06) << x;
  }
}

TEST(GaussianProcess, FitOfEqualValuesIsSound) {
  const std::vector<double> values{-3, -3, -3};
  const GaussianProcess process = GaussianProcess::fit({{0.1}, {0.5}, {0.9}}, values);
  EXPECT_DOUBLE_EQ(process.at({0.3}).mean, -3);
  EXPECT_LT(process.at({0.3}).deviation, 1e-5);
  const std::vector<double> one{7};
  EXPECT_DOUBLE_EQ(GaussianProcess::fit({{0.1}}, one).at({0.8}).mean, 7);
}

TEST(ExpectedImprovement, KnownValues) {
  EXPECT_DOUBLE_EQ(expected_improvement({3, 0}, 5), 2);
  EXPECT_DOUBLE_EQ(expected_improvement({6, 0}, 5), 0);
  // No gain in the mean: deviation / sqrt(2 pi).
  EXPECT_NEAR(expected_improvement({5, 2}, 5), 2 * 0.3989422804014327, 1e-12);
  // z = 1: Phi(1) + phi(1) = 0.8413447460685429 + 0.2419707245191434
  EXPECT_NEAR(expected_improvement({4, 1}, 5), 1.0833154705876863, 1e-12);
  // z = -1: phi(1) - (1 - Phi(1))
  EXPECT_NEAR(expected_improvement({6, 1}, 5), 0.0833154705876863, 1e-12);
  EXPECT_GE(expected_improvement({1e3, 1}, 5), 0);
}

}  // namespace
}  // namespace horon::core
