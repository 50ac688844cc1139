// What horon-bench is asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::bench {

struct Options {
  int64_t bytes_min = 8;
  int64_t bytes_max = 64 << 20;
  int64_t step_factor = 4;
  int iters = 20;
  int warmup_iters = 5;
  bool check = true;
  ReduceOp op = ReduceOp::Sum;
  DataType dtype = DataType::Float32;
  CollectiveKind collective = CollectiveKind::Allreduce;
  int root = 0;
  bool registered = true;  // false: private memory of the process
  bool peer = false;       // raw MPI on the same sizes
  bool stats = false;      // also min and p99
  double ratio_max = 0;    // 0: any; else above it the program fails
  double idle_s = 0;       // 0: measure collectives, else the cost of rest
  double idle_percent_max = 0;
  std::string json;  // file, empty: none

  // bytes_min, bytes_min * step_factor, ... up to bytes_max.
  std::vector<int64_t> sizes() const;
};

// If the program is to end now (--help, or an error in the arguments) `exit_text` is what to say.
struct ParsedOptions {
  Options options;
  int exit_code = 0;
  std::string exit_text;
};
ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace horon::bench
