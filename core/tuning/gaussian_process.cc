#include "horon/core/tuning/gaussian_process.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::core {
namespace {

constexpr double kAmplitudeMin = 1e-6;

double matern(double distance, double length) {
  const double r = std::sqrt(5.0) * distance / length;
  return (1 + r + r * r / 3) * std::exp(-r);
}

double distance(const TuningPoint& a, const TuningPoint& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

Eigen::MatrixXd covariances(const std::vector<TuningPoint>& points, const GaussianKernel& kernel) {
  const auto count = static_cast<Eigen::Index>(points.size());
  Eigen::MatrixXd matrix(count, count);
  for (Eigen::Index i = 0; i < count; ++i) {
    for (Eigen::Index j = 0; j < count; ++j) {
      matrix(i, j) =
          kernel.covariance(points[static_cast<size_t>(i)], points[static_cast<size_t>(j)]);
    }
    matrix(i, i) += kernel.noise * kernel.noise;
  }
  return matrix;
}

Eigen::VectorXd deviations(std::span<const double> values, double constant) {
  Eigen::VectorXd result(static_cast<Eigen::Index>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    result(static_cast<Eigen::Index>(i)) = values[i] - constant;
  }
  return result;
}

// The cost in log likelihood of a value: one half if it lies `spread` e-folds beside the likely
// one.
double surprise(double value, double likely, double spread) {
  const double off = std::log(value / likely) / spread;
  return off * off / 2;
}

}  // namespace

struct GaussianProcess::Solved {
  Eigen::LLT<Eigen::MatrixXd> factor;  // of the covariances of the measurements
  Eigen::VectorXd weights;             // of the covariances with them, in a mean
};

double GaussianKernel::covariance(const TuningPoint& a, const TuningPoint& b) const {
  return amplitude * amplitude * matern(distance(a, b), length);
}

GaussianProcess::GaussianProcess(std::vector<TuningPoint> points, std::span<const double> values,
                                 double constant, const GaussianKernel& kernel)
    : points_(std::move(points)),
      constant_(constant),
      kernel_(kernel),
      solved_(std::make_unique<Solved>()) {
  HORON_CHECK(points_.size() == values.size(), "each point has a value");
  solved_->factor.compute(covariances(points_, kernel_));
  solved_->weights = solved_->factor.solve(deviations(values, constant_));
}

GaussianProcess::GaussianProcess(GaussianProcess&&) noexcept = default;
GaussianProcess& GaussianProcess::operator=(GaussianProcess&&) noexcept = default;
GaussianProcess::~GaussianProcess() = default;

GaussianProcess GaussianProcess::fit(const std::vector<TuningPoint>& points,
                                     std::span<const double> values) {
  HORON_CHECK(!values.empty() && points.size() == values.size(), "each point has a value");
  constexpr std::array kLengths = {0.1, 0.2, 0.4, 0.8, 1.6};
  constexpr std::array kNoises = {0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0};  // over the amplitude
  const auto count = static_cast<double>(values.size());
  const double constant = std::accumulate(values.begin(), values.end(), 0.0) / count;
  const Eigen::VectorXd off = deviations(values, constant);
  GaussianKernel best;
  double best_score = -std::numeric_limits<double>::infinity();
  for (const double length : kLengths) {
    for (const double noise : kNoises) {
      const Eigen::LLT<Eigen::MatrixXd> factor(covariances(points, {length, 1, noise}));
      // For this shape of the kernel the most likely amplitude has a closed form.
      const double amplitude =
          std::max(kAmplitudeMin, std::sqrt(off.dot(factor.solve(off)) / count));
      const Eigen::MatrixXd lower = factor.matrixL();
      const double score = -count * std::log(amplitude) - lower.diagonal().array().log().sum() -
                           surprise(length, 0.4, 1) - surprise(noise, 0.3, 1);
      if (score <= best_score) continue;
      best_score = score;
      best = {length, amplitude, noise * amplitude};
    }
  }
  return {points, values, constant, best};
}

Belief GaussianProcess::at(const TuningPoint& point) const {
  Eigen::VectorXd shared(static_cast<Eigen::Index>(points_.size()));
  for (size_t i = 0; i < points_.size(); ++i) {
    shared(static_cast<Eigen::Index>(i)) = kernel_.covariance(points_[i], point);
  }
  const double known = shared.dot(solved_->factor.solve(shared));
  const double unknown = kernel_.amplitude * kernel_.amplitude - known;
  return {constant_ + shared.dot(solved_->weights), std::sqrt(std::max(0.0, unknown))};
}

}  // namespace horon::core
