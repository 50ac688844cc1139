// Finds the choice with which steps take the least time, while the steps go on. Pure: it is told
// how long each step took, and says with which choice the next ones are to run.
//
// 1. Search: each choice that bayesian_search.h asks for runs for some steps, and the median of
//    their times is its cost. It ends when nothing is expected to be gained, or after a number of
//    choices.
// 2. Comparison: the best one and the first one, where the program stood, run in turns. The best
//    one is kept if in these pairs it was faster by more than their noise: by Student's t, a choice
//    that is no faster passes once in a hundred times. Otherwise the program goes back.
//
// A choice that an earlier run has found is compared at once, and the search follows only if it is
// not kept. The steps after a change are not counted: memory is new, and collectives are negotiated
// until they are frozen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "horon/core/tuning/bayesian_search.h"
#include "horon/core/tuning/tuning_point.h"

namespace horon::core {

class Autotuner {
 public:
  struct Options {
    int64_t samples = 20;     // choices that the search looks at, at most
    int64_t steps = 10;       // timed for each, at least
    double seconds = 0.1;     // a sample lasts so long, at least, but ends after 5 * `steps` steps
    int64_t warm_up = 6;      // steps after a change that are not timed
    double gain_min = 0.002;  // the search ends if it expects less: a part of the time of a step
  };
  enum class Stage : uint8_t { Search, Comparison, Done };

  // The program stands at choices[0]. `known`: what an earlier run has found.
  Autotuner(std::vector<TuningPoint> choices, const Options& options,
            std::optional<size_t> known = {});

  // The choice with which the next steps are to run. Call changed() when all ranks do so.
  size_t wanted() const { return wanted_; }
  void changed();
  // wanted() is not in use yet.
  bool awaits_change() const { return used_ != wanted_; }

  struct Sample {
    Stage stage = Stage::Search;
    size_t choice = 0;
    int64_t steps = 0;
    double median_s = 0;    // of a step
    double quartile_s = 0;  // half the distance between the quartiles
  };
  // A step has taken so long; without a time it does not count. Returns the sample that it has
  // completed, if it has.
  std::optional<Sample> step(double seconds);
  // Something else went on during the sample: it begins anew.
  void discard();
  // Ends it, back to where the program stood.
  void give_up();

  Stage stage() const { return stage_; }
  // Nothing is left to do, and wanted() is in use.
  bool finished() const { return stage_ == Stage::Done && !awaits_change(); }

  // When the stage is Done.
  struct Result {
    size_t choice = 0;
    bool compared = false;  // else the first choice was also the best of the search
    // Of the best choice: the logarithm of (time with the first choice / time with it).
    double gain = 0;
    double noise = 0;  // that the gain must be above
  };
  const Result& result() const { return result_; }

 private:
  void add_to_search(const Sample& sample);
  void add_to_comparison(const Sample& sample);
  void search_on();
  void compare(size_t choice);
  void end(const Result& result);

  const Options options_;
  const std::vector<TuningPoint> choices_;
  BayesianSearch search_;
  Stage stage_ = Stage::Search;
  size_t wanted_ = 0;
  size_t used_ = 0;
  int64_t to_skip_;
  std::vector<double> seconds_;  // of this sample's steps
  double sum_s_ = 0;
  bool had_known_ = false;
  // The comparison: log times, in the order of the samples.
  size_t compared_ = 0;  // with the first choice
  std::vector<double> firsts_, others_;
  Result result_;
};

std::string_view to_string(Autotuner::Stage stage);

}  // namespace horon::core
