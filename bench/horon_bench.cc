// horon-bench: bandwidth and latency of collectives, and the CPU time of idle ranks.
// bench/README.md says how to read its figures.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "horon/bench/cost_measurement.h"
#include "horon/bench/idle.h"
#include "horon/bench/json_file.h"
#include "horon/bench/measure.h"
#include "horon/bench/mpi_peer.h"
#include "horon/bench/options.h"
#include "horon/bench/peers.h"
#include "horon/bench/report.h"
#include "horon/bench/standard_output.h"
#include "horon/core/base/error.h"
#include "horon/core/base/narrow_type.h"
#include "horon/core/base/replace_file.h"
#include "horon/core/base/text.h"
#include "horon/core/base/version.h"
#include "horon/ops/hierarchical/wire_type.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace {

using namespace horon;
using namespace horon::bench;

// A failure to print is told at the end (see main()).
void print(const std::string& text) {
  (void)std::fputs(text.c_str(), stdout);
  (void)std::fflush(stdout);
}

void say(const std::string& text) {
  if (rank() == 0) print(text);
}

// Prints the table and the like, unless standard output is for the JSON.
void print_beside_json(const Options& options, const std::string& text) {
  if (options.json != "-") print(text);
}

// What a user must know in any case: on standard error if standard output is for the JSON.
void tell(const Options& options, const std::string& text) {
  if (options.json != "-") return print(text);
  (void)std::fputs(text.c_str(), stderr);
}

void write_json(const Options& options, const nlohmann::json& content) {
  if (options.json == "-") print(content.dump(2) + "\n");
  if (!options.json.empty() && options.json != "-") write_json_file(options.json, content);
}

// Why the results could not be written, before anything is measured; empty if they can. Collective
// over all ranks, since only the first of those that measure writes.
std::string fault_of_json(const Options& options) {
  if (options.json.empty() || options.json == "-") return "";
  std::string mine;
  if (rank() == (options.members.empty() ? 0 : options.members.front())) {
    try {
      core::require_replaceable(options.json);
    } catch (const Error& error) {
      mine = error.what();
    }
  }
  MpiPeer mpi;
  for (std::string& fault : mpi.gather_text(mine)) {
    if (!fault.empty()) return std::move(fault);
  }
  return "";
}

// Collective over all ranks.
ProcessSet make_set(const Options& options) {
  std::vector<int> ranks = options.members;
  for (int rank = 0; options.set_of_all && rank < size(); ++rank) ranks.push_back(rank);
  if (!ranks.empty() && ranks.back() >= size()) {
    throw Error(ErrorCode::Config, core::concat("--set: there is no rank ", ranks.back(),
                                                "; the ranks are 0 to ", size() - 1));
  }
  const ProcessSet set = ranks.empty() ? ProcessSet() : add_process_set(ranks);
  const std::vector<int> members = set.ranks();
  if (std::find(members.begin(), members.end(), options.root) != members.end()) return set;
  if (!core::has_root(options.collective)) return set;
  throw Error(ErrorCode::Config,
              core::concat("--root: rank ", options.root, " is not in the process set"));
}

struct Measured {
  int exit_code = 0;      // 0: all results were right, and no limit was exceeded
  nlohmann::json report;  // null: nothing was measured
};

// Why the comparison that the user asks for is impossible; empty if it is possible, or if the user
// asks for none.
std::string fault_of_peers(const Options& options, const Peers& peers) {
  if (options.ratio_max > 0 && !peers.has(options.peers.front())) {
    return core::concat(peers.left_out(), "horon-bench: --ratio-max is for ",
                        to_string(options.peers.front()), ", which is left out\n");
  }
  if (options.peers.empty() || !peers.kinds().empty()) return "";
  return core::concat(peers.left_out(), "horon-bench: no --peer is left to compare with\n");
}

// Why the program fails; empty if it does not.
std::string failure_text(const Options& options, const std::vector<Row>& rows) {
  std::string text;
  if (wrong_in(rows) > 0) text += core::concat("# FAILED: ", wrong_in(rows), " wrong values\n");
  if (options.ratio_max > 0 && worst_ratio(rows) > options.ratio_max) {
    text += core::concat("# FAILED: ratio above ", options.ratio_max, "\n");
  }
  return text;
}

// Runs on the members of the set.
Measured measure_members(Options options, const ProcessSet& set, MpiPeer& mpi) {
  const bool speaks = set.rank() == 0;
  const auto say_of_set = [&](const std::string& text) {
    if (speaks) print_beside_json(options, text);
  };
  Peers peers(options, mpi, set.rank());
  const std::string fault = fault_of_peers(options, peers);
  if (!fault.empty()) {
    // No exception: the ranks that are not in the set sleep until these are done.
    if (speaks) (void)std::fputs(fault.c_str(), stderr);
    return {1, nullptr};
  }
  options.peers = peers.kinds();
  const std::string header = header_text(options, set, mpi);
  say_of_set(header);
  if (speaks) tell(options, peers.left_out());
  say_of_set(column_titles(options));
  std::vector<Row> rows;
  {
    Measurement measurement(options, set, ops::runtime(), mpi, &peers);
    for (const int64_t bytes : options.sizes()) {
      rows.push_back(measurement.run(bytes));
      say_of_set(row_text(options, rows.back(), set.size()));
    }
  }
  say_of_set(footer_text(rows, options, set.size()));
  Measured measured;
  measured.report = to_json(options, set, rows);
  const std::string failure = failure_text(options, rows);
  if (speaks) tell(options, failure);
  measured.exit_code = failure.empty() ? 0 : 1;
  return measured;
}

int measure_collectives(const Options& options) {
  const ProcessSet set = make_set(options);
  MpiPeer mpi(set);
  Measured measured;
  if (set.includes_me()) measured = measure_members(options, set, mpi);
  // The ranks that are not in the set sleep until the others are done.
  if (!set.is_world()) MpiPeer::meet_all_ranks();
  // After that meeting, since writing may fail on this rank alone.
  if (set.rank() == 0 && !measured.report.is_null()) write_json(options, measured.report);
  return measured.exit_code;
}

int measure_rest(const Options& options) {
  MpiPeer mpi;
  // After some work, since an idle rank that has worked is what is to be measured.
  barrier();
  const IdlePercents percents = measure_idle_percents(mpi, options.idle_s);
  for (size_t i = 0; i < percents.mean.size() && rank() == 0; ++i) {
    print_beside_json(options, core::concat("# rank ", i, " at rest for ", options.idle_s, " s: ",
                                            percents.mean[i], " % of a core, median of ten parts ",
                                            percents.median[i], " %\n"));
  }
  const double worst = *std::ranges::max_element(percents.median);
  if (rank() == 0) {
    write_json(options, {{"version", version()},
                         {"machine", describe_machine()},
                         {"seconds", options.idle_s},
                         {"percent_of_a_core", percents.mean},
                         {"median_of_ten_parts", percents.median},
                         {"worst", worst}});
  }
  const bool too_much = options.idle_percent_max > 0 && worst > options.idle_percent_max;
  if (too_much && rank() == 0) {
    tell(options, core::concat("# FAILED: above ", options.idle_percent_max, " % of a core\n"));
  }
  return too_much ? 1 : 0;
}

nlohmann::json to_json(const StepPrediction& prediction, const AllreduceCost& cost) {
  return {{"latency_us", cost.latency_us},
          {"bytes_per_us", cost.bytes_per_us},
          {"compute_us_per_byte", cost.compute_us_per_byte},
          {"step_ms", prediction.step_ms},
          {"compute_ms", prediction.compute_ms},
          {"communication_ms", prediction.communication_ms},
          {"exposed_ms", prediction.exposed_ms},
          {"buckets", prediction.buckets}};
}

// The type in which buckets of float32 travel between hosts.
ops::WireType wire_type(const Options& options, const core::Config& config) {
  if (options.compression == Compression::Int8) return ops::WireType::int8_blocks();
  if (core::is_16_bit(options.compression)) return core::narrow_type(options.compression);
  return ops::wire_type_named(config.wire_dtype);
}

int predict(const Options& options) {
  if (size() == 1 && options.predict.rehearse) {
    throw Error(ErrorCode::Config, "--rehearse needs several ranks (mpirun -np 4 ...)");
  }
  if (size() == 1 && !options.predict.network_given) {
    throw Error(ErrorCode::Config, "--predict needs several ranks (mpirun -np 4 ...) or --network");
  }
  const core::Config& config = ops::runtime().config();
  const Buckets buckets{static_cast<double>(config.first_bucket_bytes),
                        static_cast<double>(config.bucket_bytes)};
  AllreduceCost cost;
  TrainedModel model = options.predict.model;
  nlohmann::json json{{"version", version()}, {"machine", describe_machine()}, {"ranks", size()}};
  const auto say_of_job = [&](const std::string& text) {
    if (rank() == 0) print_beside_json(options, text);
  };
  const auto add = [&](const std::string& key, const std::string& where, const AllreduceCost& of) {
    const StepPrediction prediction = predict_step(model, of, buckets);
    json[key] = to_json(prediction, of);
    say_of_job(prediction_text(where, of, prediction));
  };
  if (size() > 1) {
    MpiPeer mpi;
    CostMeasurement measurement(ops::runtime(), mpi,
                                std::max(config.bucket_bytes, config.first_bucket_bytes),
                                options.compression);
    cost = measurement.measure();
    if (options.predict.rehearse) {
      const CostMeasurement::Rehearsal rehearsal = measurement.rehearse(model, buckets);
      model.alone_ms = rehearsal.alone_ms;
      json["rehearsal"] = {{"alone_ms", rehearsal.alone_ms}, {"step_ms", rehearsal.step_ms}};
      say_of_job(core::concat("# rehearsed with arithmetic: alone ", rehearsal.alone_ms,
                              " ms, step ", rehearsal.step_ms, " ms\n"));
    }
    add("this_job", core::concat("these ", size(), " ranks, measured"), cost);
  }
  if (options.predict.network_given) {
    const PredictOptions& given = options.predict;
    add("network",
        core::concat(given.hosts, " hosts, ", given.gbit, " Gbit/s, ", given.delay_us, " us"),
        cost_of_network(given, config.bucket_bytes, cost.compute_us_per_byte,
                        wire_type(options, config)));
  }
  if (rank() == 0) write_json(options, json);
  return 0;
}

int run(int argc, char** argv) {
  // The text of --help or of an error is printed after init(), because only rank 0 is to print.
  const ParsedOptions parsed = parse_options(argc, argv);
  const Options& options = parsed.options;
  const auto& peers = options.peers;
  if (std::find(peers.begin(), peers.end(), PeerKind::Tuned) != peers.end()) MpiAlgorithms::allow();
  init_session();
  if (!parsed.exit_text.empty()) {
    say(parsed.exit_text);
    return parsed.exit_code;
  }
  if (const std::string fault = fault_of_json(options); !fault.empty()) {
    if (rank() == 0) (void)std::fprintf(stderr, "horon-bench: --json: %s\n", fault.c_str());
    return 1;
  }
  if (!options.predict.model.stages.empty()) return predict(options);
  return options.idle_s > 0 ? measure_rest(options) : measure_collectives(options);
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
  return code_with_output("horon-bench", code);
}
