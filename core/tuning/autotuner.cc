#include "horon/core/tuning/autotuner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace horon::core {
namespace {

// First, other, other, first, first, ...: an even drift meanwhile affects both equally.
constexpr size_t kPairs = 6;
// Student's t of kPairs - 1 degrees of freedom, one-sided, 1 in 100.
constexpr double kStudentT = 3.365;

bool is_first_in_turn(size_t samples) { return (samples + 1) / 2 % 2 == 0; }

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

struct MeanAndError {
  double mean = 0;
  double error = 0;  // of the mean
};

MeanAndError mean_difference(const std::vector<double>& a, const std::vector<double>& b) {
  const auto count = static_cast<double>(a.size());
  MeanAndError result;
  for (size_t i = 0; i < a.size(); ++i) result.mean += (a[i] - b[i]) / count;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double off = a[i] - b[i] - result.mean;
    squares += off * off;
  }
  result.error = std::sqrt(squares / (count - 1) / count);
  return result;
}

double quantile(const std::vector<double>& sorted, double part) {
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Autotuner::Autotuner(std::vector<TuningPoint> choices, const Options& options,
                     std::optional<size_t> known)
    : options_(options),
      choices_(std::move(choices)),
      search_(choices_),
      to_skip_(2 * options.warm_up),
      had_known_(known.has_value()) {
  if (choices_.size() == 1) {
    end({});
  } else if (known) {
    compare(*known);
  }
}

void Autotuner::changed() {
  if (!awaits_change()) return;
  used_ = wanted_;
  discard();
}

void Autotuner::discard() {
  to_skip_ = std::max(to_skip_, options_.warm_up);
  seconds_.clear();
  sum_s_ = 0;
}

void Autotuner::give_up() {
  if (stage_ != Stage::Done) end({});
}

std::optional<Autotuner::Sample> Autotuner::step(double seconds) {
  if (stage_ == Stage::Done || awaits_change() || !(seconds > 0)) return std::nullopt;
  if (to_skip_ > 0) {
    --to_skip_;
    return std::nullopt;
  }
  seconds_.push_back(seconds);
  sum_s_ += seconds;
  const auto steps = static_cast<int64_t>(seconds_.size());
  if (steps < options_.steps) return std::nullopt;
  if (sum_s_ < options_.seconds && steps < 5 * options_.steps) return std::nullopt;
  std::sort(seconds_.begin(), seconds_.end());
  const Sample sample = {stage_, used_, steps, quantile(seconds_, 0.5),
                         (quantile(seconds_, 0.75) - quantile(seconds_, 0.25)) / 2};
  seconds_.clear();
  sum_s_ = 0;
  if (stage_ == Stage::Search) {
    add_to_search(sample);
  } else {
    add_to_comparison(sample);
  }
  return sample;
}

void Autotuner::add_to_search(const Sample& sample) {
  search_.observe(sample.choice, sample.median_s);
  search_on();
}

void Autotuner::search_on() {
  const BayesianSearch::Look look = search_.next();
  const bool over =
      look.gain < options_.gain_min || search_.looks() >= static_cast<size_t>(options_.samples);
  if (!over) {
    wanted_ = look.choice;
    return;
  }
  const size_t best = search_.best();
  if (best == 0) return end({});
  compare(best);
}

void Autotuner::compare(size_t choice) {
  if (choice == 0) return end({});
  stage_ = Stage::Comparison;
  compared_ = choice;
  firsts_.clear();
  others_.clear();
  wanted_ = 0;
}

void Autotuner::add_to_comparison(const Sample& sample) {
  (sample.choice == 0 ? firsts_ : others_).push_back(std::log(sample.median_s));
  const size_t samples = firsts_.size() + others_.size();
  if (samples < 2 * kPairs) {
    wanted_ = is_first_in_turn(samples) ? 0 : compared_;
    return;
  }
  const MeanAndError difference = mean_difference(firsts_, others_);
  const Result result = {compared_, true, difference.mean, kStudentT * difference.error};
  if (result.gain > result.noise) return end(result);
  if (!std::exchange(had_known_, false)) return end({0, true, result.gain, result.noise});
  // The file of another run did not help: search after all, with what has been seen.
  stage_ = Stage::Search;
  search_.observe(0, std::exp(mean_of(firsts_)));
  search_.observe(compared_, std::exp(mean_of(others_)));
  search_on();
}

void Autotuner::end(const Result& result) {
  stage_ = Stage::Done;
  result_ = result;
  wanted_ = result.choice;
}

std::string_view to_string(Autotuner::Stage stage) {
  switch (stage) {
    case Autotuner::Stage::Search:
      return "search";
    case Autotuner::Stage::Comparison:
      return "comparison";
    case Autotuner::Stage::Done:
      break;
  }
  return "done";
}

}  // namespace horon::core
