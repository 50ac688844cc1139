// The time of a training step as a function of two settings, shaped as real ones are: a smooth
// valley, with noise.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "horon/core/tuning/tuning_point.h"

namespace horon::testing_support {

// A grid of the unit square, with `start` as its first point.
inline std::vector<core::TuningPoint> grid(const core::TuningPoint& start, int side = 17) {
  std::vector<core::TuningPoint> points{start};
  for (int i = 0; i < side; ++i) {
    for (int j = 0; j < side; ++j) {
      points.push_back({i / (side - 1.0), j / (side - 1.0)});
    }
  }
  return points;
}

// Minimal at (0.7, 0.3), where it is 10 ms; 20 ms at the far corner.
inline double valley_s(const core::TuningPoint& point) {
  const double x = point[0] - 0.7, y = point[1] - 0.3;
  return 0.010 * (1 + (x * x + 0.5 * y * y) / 0.735);
}

// Now and then a step takes twice as long: something else ran on the machine.
class Noise {
 public:
  Noise(unsigned seed, double deviation) : random_(seed), normal_(0, deviation) {}
  double operator()(double seconds) {
    const double outlier = std::uniform_real_distribution<double>(0, 1)(random_) < 0.05 ? 2 : 1;
    return seconds * std::exp(normal_(random_)) * outlier;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
};

}  // namespace horon::testing_support
