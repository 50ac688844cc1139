// horon-bench: bandwidth and latency of collectives, and the CPU time of idle ranks.
// bench/README.md says how to read its figures.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "horon/bench/idle.h"
#include "horon/bench/json_file.h"
#include "horon/bench/measure.h"
#include "horon/bench/mpi_peer.h"
#include "horon/bench/options.h"
#include "horon/bench/report.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/base/version.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace {

using namespace horon;
using namespace horon::bench;

void say(const std::string& text) {
  if (rank() != 0) return;
  (void)std::fputs(text.c_str(), stdout);
  (void)std::fflush(stdout);
}

void write_json(const Options& options, const nlohmann::json& content) {
  if (rank() == 0 && !options.json.empty()) write_json_file(options.json, content);
}

// Returns 0 if all results were right and no limit was exceeded.
int measure_collectives(const Options& options, MpiPeer& mpi) {
  if (options.root >= size()) {
    throw Error(ErrorCode::Config, core::concat("there is no rank ", options.root));
  }
  if (options.peer && options.collective == CollectiveKind::Allreduce) {
    const std::string refusal = MpiPeer::refusal(options.dtype, options.op);
    if (!refusal.empty()) throw Error(ErrorCode::Config, "--peer mpi: " + refusal);
  }
  say(header_text(options, mpi) + column_titles(options));
  std::vector<Row> rows;
  {
    Measurement measurement(options, ops::runtime(), mpi);
    for (const int64_t bytes : options.sizes()) {
      rows.push_back(measurement.run(bytes));
      say(row_text(options, rows.back(), size()));
    }
  }
  say(footer_text(rows, options, size()));
  write_json(options, to_json(options, rows, size()));
  if (wrong_in(rows) > 0) return 1;
  const bool too_slow = options.ratio_max > 0 && worst_ratio(rows) > options.ratio_max;
  if (too_slow) say(core::concat("# FAILED: ratio to MPI above ", options.ratio_max, "\n"));
  return too_slow ? 1 : 0;
}

int measure_rest(const Options& options, MpiPeer& mpi) {
  // After some work, since an idle rank that has worked is what is to be measured.
  barrier();
  const std::vector<double> percents = measure_idle_percent(mpi, options.idle_s);
  for (size_t i = 0; i < percents.size(); ++i) {
    say(core::concat("# rank ", i, " at rest for ", options.idle_s, " s: ", percents[i],
                     " % of a core\n"));
  }
  const double worst = *std::max_element(percents.begin(), percents.end());
  write_json(options, {{"version", version()},
                       {"machine", describe_machine()},
                       {"seconds", options.idle_s},
                       {"percent_of_a_core", percents},
                       {"worst", worst}});
  const bool too_much = options.idle_percent_max > 0 && worst > options.idle_percent_max;
  if (too_much) say(core::concat("# FAILED: above ", options.idle_percent_max, " % of a core\n"));
  return too_much ? 1 : 0;
}

int run(int argc, char** argv) {
  // After init(), because only rank 0 is to print.
  const ParsedOptions parsed = parse_options(argc, argv);
  init_session();
  if (!parsed.exit_text.empty()) {
    say(parsed.exit_text);
    return parsed.exit_code;
  }
  MpiPeer mpi;
  const Options& options = parsed.options;
  return options.idle_s > 0 ? measure_rest(options, mpi) : measure_collectives(options, mpi);
}

}  // namespace

int main(int argc, char** argv) {
  int code = 1;
  try {
    code = run(argc, argv);
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "horon-bench: %s\n", error.what());
  }
  horon::shutdown();
  return code;
}
