// The table of what autotuning has measured: a line for each sample, as comma-separated values.
#pragma once

#include <cstdint>
#include <string>

#include "horon/core/tuning/tuning_settings.h"

namespace horon::core {

class TuningLog {
 public:
  struct Row {
    std::string subject;  // what is tuned
    double elapsed_s = 0;
    std::string stage;  // "search", "comparison", "kept"
    TuningSettings settings;
    int64_t buckets = 0;
    int64_t steps = 0;
    double step_s = 0;      // median
    double quartile_s = 0;  // half the distance between the quartiles
    double over_start = 1;  // the median over that of the first sample
  };

  // Begins the file anew, unless this process has written to it before. `settings` give the names
  // of the columns. Throws Error(Config) that names the file and the reason, as add() does.
  TuningLog(std::string path, const TuningSettings& settings);
  // The file is complete after each call.
  void add(const Row& row) const;

 private:
  std::string path_;
};

}  // namespace horon::core
