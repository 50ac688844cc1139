// The search for the cheapest of some choices where each look at a cost is noisy and takes time.
//
// The first choice is looked at first, then a few that are spread over the cube. From then on each
// look goes where the cost is expected to fall most below the best that is known, to each choice
// three times at most. Costs are compared by their logarithm, so a gain is a share of the cost. The
// same looks always lead to the same next one. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "horon/core/tuning/gaussian_process.h"
#include "horon/core/tuning/tuning_point.h"

namespace horon::core {

class BayesianSearch {
 public:
  // At least one choice, all with as many coordinates.
  explicit BayesianSearch(std::vector<TuningPoint> choices);

  // `cost`: above 0. A choice may be observed several times.
  void observe(size_t choice, double cost);

  struct Look {
    size_t choice = 0;
    double gain = 0;  // the part of the best cost that it is expected to save
  };
  // Where to look next.
  Look next() const;
  // The observed choice that is believed to be the cheapest; the first choice while none has been
  // observed.
  size_t best() const;
  size_t looks() const { return seen_.size(); }

 private:
  bool was_seen(size_t choice) const;
  size_t nearest_unseen(const TuningPoint& place) const;
  size_t best_by(const GaussianProcess& process) const;

  std::vector<TuningPoint> choices_;
  std::vector<size_t> seen_;  // in the order of observation
  std::vector<TuningPoint> points_;
  std::vector<double> log_costs_;
};

}  // namespace horon::core
