// What is believed of a function after a few noisy measurements: Gaussian-process regression with
// the kernel Matern 5/2.
//
// The function is taken for a constant plus a deviation. Deviations at two places are the more
// alike the nearer the places are. A measurement adds noise of its own. Pure: no state but what it
// was given.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "horon/core/tuning/tuning_point.h"

namespace horon::core {

// A normal distribution.
struct Belief {
  double mean = 0;
  double deviation = 0;  // standard deviation
};

struct GaussianKernel {
  double length = 0.5;   // over which the function changes
  double amplitude = 1;  // standard deviation of the function around the constant
  double noise = 0.1;    // standard deviation of a measurement; above 0

  // The covariance of the function at two points of as many coordinates.
  double covariance(const TuningPoint& a, const TuningPoint& b) const;
};

class GaussianProcess {
 public:
  // One value for each point; `constant` is what is believed far from all of them.
  GaussianProcess(std::vector<TuningPoint> points, std::span<const double> values, double constant,
                  const GaussianKernel& kernel);
  // The constant is the mean of the values, of which there is one at least. The kernel is the most
  // likely one of a grid. With few measurements it stays near a length of 0.4, and noise near a
  // third of the amplitude. Differences below 1e-6 count as none.
  static GaussianProcess fit(const std::vector<TuningPoint>& points,
                             std::span<const double> values);
  GaussianProcess(GaussianProcess&&) noexcept;
  GaussianProcess& operator=(GaussianProcess&&) noexcept;
  ~GaussianProcess();

  // The belief about the function itself, without the noise of a further measurement.
  Belief at(const TuningPoint& point) const;
  const GaussianKernel& kernel() const { return kernel_; }

 private:
  struct Solved;

  std::vector<TuningPoint> points_;
  double constant_;
  GaussianKernel kernel_;
  std::unique_ptr<Solved> solved_;
};

}  // namespace horon::core
