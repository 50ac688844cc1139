// The command line of horon-bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::bench {

// How a program calls the collective.
enum class Calling : uint8_t {
  Blocking,  // one entry, run to its end
  Group,     // the tensors of the call as one entry with several parts
  Async,     // each tensor as an entry of its own: all are submitted, then all are waited for
};

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
  Calling calling = Calling::Blocking;
  int tensors = 1;  // into which the message is divided
  DeviceKind device = DeviceKind::Host;
  bool registered = true;  // host memory that Horon allocates; false: private memory of the process
  bool peer = false;       // also time raw MPI on the same sizes
  bool stats = false;      // also print the least time and the 99th percentile
  double ratio_max = 0;    // the program fails above this ratio; 0: never
  double idle_s = 0;       // seconds of idling to measure; 0: measure collectives
  double idle_percent_max = 0;
  std::string json;  // file for results; empty: none

  // bytes_min, bytes_min * step_factor, ... up to bytes_max.
  std::vector<int64_t> sizes() const;
};

// If the program must end now (--help, or an error in the arguments), `exit_text` is to be printed.
struct ParsedOptions {
  Options options;
  int exit_code = 0;
  std::string exit_text;
};
ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace horon::bench
