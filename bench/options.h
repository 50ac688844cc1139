// The command line of horon-bench.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "horon/bench/step_model.h"
#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::bench {

// How a program calls the collective.
enum class Calling : uint8_t {
  Blocking,  // one entry, run to its end
  Group,     // the tensors of the call as one entry with several parts
  Async,     // each tensor as an entry of its own: all are submitted, then all are waited for
};

// What is timed beside Horon.
enum class PeerKind : uint8_t {
  Mpi,    // the MPI library, which chooses an algorithm by itself
  Tuned,  // the best of all algorithms that Open MPI has for the message
  Gloo,
};
std::string_view to_string(PeerKind peer);

// Which form of a collective is timed; a collective that has only one runs in that one.
enum class Form : uint8_t { Both, InPlace, OutOfPlace };

// What a prediction is made for.
struct PredictOptions {
  TrainedModel model;  // without stages: nothing is to be predicted
  bool rehearse = false;
  bool network_given = false;
  int hosts = 0;  // this and the next two count only if the network is given
  double gbit = 0;
  double delay_us = 0;
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
  Compression compression = Compression::None;
  int64_t piece_bytes = 0;  // of an allreduce; 0: its op chooses
  CollectiveKind collective = CollectiveKind::Allreduce;
  int root = 0;  // a rank of the job, and of the set
  // The ranks that take part, ascending, as a process set of their own; the others sleep. Empty:
  // all ranks, in the set that every job has.
  std::vector<int> members;
  bool set_of_all = false;  // all ranks, in a process set of their own
  Calling calling = Calling::Blocking;
  int tensors = 1;  // into which the message is divided
  DeviceKind device = DeviceKind::Host;
  bool registered = true;  // host memory that Horon allocates; false: private memory of the process
  int64_t offset = 0;      // of private memory: where in a page it begins
  Form form = Form::Both;
  std::vector<PeerKind> peers;  // each once
  std::string gloo_interface;   // see find_gloo_place()
  bool stats = false;           // also print the least time and the 99th percentile
  double ratio_max = 0;         // the program fails above this ratio; 0: never
  double seconds_max = 0;  // of each form of each size, from the fifth repetition on; 0: no limit
  double idle_s = 0;       // seconds of idling to measure; 0: measure collectives
  double idle_percent_max = 0;
  PredictOptions predict;
  std::string json;  // file for results; "-": standard output, without the table; empty: none

  bool has_own_set() const { return set_of_all || !members.empty(); }
  // bytes_min, bytes_min * step_factor, ... up to bytes_max. A barrier has no bytes: {0}.
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
