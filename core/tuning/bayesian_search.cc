#include "horon/core/tuning/bayesian_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/tuning/expected_improvement.h"

namespace horon::core {
namespace {

constexpr size_t kSpreadLooks = 4;
// On a busy machine each further look at the best choice gives another cost. The comparison at the
// end measures that choice again anyway.
constexpr int64_t kLooksAtOne = 3;
constexpr std::array kPrimes = {2, 3, 5, 7};

// The digits of the number in this base, mirrored behind the point: 1, 2, 3 ... fill 0 to 1 evenly.
double radical_inverse(size_t number, int base) {
  double result = 0;
  double digit = 1.0 / base;
  for (; number > 0; number /= static_cast<size_t>(base)) {
    result += digit * static_cast<double>(number % static_cast<size_t>(base));
    digit /= base;
  }
  return result;
}

// The Halton sequence.
TuningPoint spread_point(size_t number, size_t coordinates) {
  TuningPoint point;
  for (size_t i = 0; i < coordinates; ++i) {
    point.push_back(radical_inverse(number, kPrimes.at(i)));
  }
  return point;
}

double squared_distance(const TuningPoint& a, const TuningPoint& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

BayesianSearch::BayesianSearch(std::vector<TuningPoint> choices) : choices_(std::move(choices)) {
  HORON_CHECK(!choices_.empty() && choices_.front().size() <= kPrimes.size(),
              "a search has choices, of few coordinates");
}

void BayesianSearch::observe(size_t choice, double cost) {
  HORON_CHECK(cost > 0, "a cost is above 0");
  seen_.push_back(choice);
  points_.push_back(choices_.at(choice));
  log_costs_.push_back(std::log(cost));
}

bool BayesianSearch::was_seen(size_t choice) const {
  return std::find(seen_.begin(), seen_.end(), choice) != seen_.end();
}

size_t BayesianSearch::nearest_unseen(const TuningPoint& place) const {
  size_t nearest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (was_seen(i)) continue;
    const double distance = squared_distance(choices_[i], place);
    if (distance >= least) continue;
    least = distance;
    nearest = i;
  }
  return nearest;
}

BayesianSearch::Look BayesianSearch::next() const {
  if (seen_.empty()) return {0, 1};
  if (seen_.size() <= kSpreadLooks && seen_.size() < choices_.size()) {
    return {nearest_unseen(spread_point(seen_.size(), choices_.front().size())), 1};
  }
  const GaussianProcess process = GaussianProcess::fit(points_, log_costs_);
  const double least = process.at(choices_[best_by(process)]).mean;
  Look look;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (std::count(seen_.begin(), seen_.end(), i) >= kLooksAtOne) continue;
    const double gain = expected_improvement(process.at(choices_[i]), least);
    if (gain > look.gain) look = {i, gain};
  }
  return look;
}

size_t BayesianSearch::best() const {
  return seen_.empty() ? 0 : best_by(GaussianProcess::fit(points_, log_costs_));
}

size_t BayesianSearch::best_by(const GaussianProcess& process) const {
  size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const size_t choice : seen_) {
    const double mean = process.at(choices_[choice]).mean;
    if (mean >= least) continue;
    least = mean;
    best = choice;
  }
  return best;
}

}  // namespace horon::core
