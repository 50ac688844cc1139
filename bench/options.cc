#include "horon/bench/options.h"

#include <cctype>
#include <map>
#include <sstream>

#include <CLI/CLI.hpp>

namespace horon::bench {
namespace {

template <class Enum>
std::map<std::string, Enum> names(int count) {
  std::map<std::string, Enum> map;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    std::string name(to_string(value));
    for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
    map.emplace(std::move(name), value);
  }
  return map;
}

// Our names, and the short ones of nccl-tests.
std::map<std::string, ReduceOp> op_names() {
  auto map = names<ReduceOp>(kReduceOpCount);
  map.insert({{"avg", ReduceOp::Average}, {"prod", ReduceOp::Product}});
  return map;
}

std::map<std::string, DataType> dtype_names() {
  auto map = names<DataType>(kDataTypeCount);
  map.insert(
      {{"float", DataType::Float32}, {"double", DataType::Float64}, {"half", DataType::Float16}});
  return map;
}

// Used instead of CLI11's transformers, which print enums as numbers.
template <class Value>
void add_choice(CLI::App& app, const std::string& flags, Value& target,
                const std::map<std::string, Value>& choices, const std::string& description) {
  const auto take = [&target, choices, flags](const std::string& text) {
    const auto found = choices.find(text);
    if (found != choices.end()) {
      target = found->second;
      return;
    }
    std::string known;
    for (const auto& [name, value] : choices) known += (known.empty() ? "" : ", ") + name;
    throw CLI::ValidationError(flags, "\"" + text + "\" is none of " + known);
  };
  app.add_option_function<std::string>(flags, take, description);
}

void add_sizes(CLI::App& app, Options& options) {
  app.add_option("-b,--min-bytes", options.bytes_min,
                 "smallest message; K, M, G are powers of 1024")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("-e,--max-bytes", options.bytes_max, "largest message")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("-f,--step-factor", options.step_factor, "factor from one size to the next")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("-n,--iters", options.iters, "timed repetitions of each size")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("-w,--warmup-iters", options.warmup_iters,
                 "untimed repetitions before the timed ones")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
}

void add_collective(CLI::App& app, Options& options) {
  std::map<std::string, CollectiveKind> kinds;
  for (const CollectiveKind kind :
       {CollectiveKind::Allreduce, CollectiveKind::Broadcast, CollectiveKind::Allgather,
        CollectiveKind::Reducescatter, CollectiveKind::Alltoall, CollectiveKind::Gather,
        CollectiveKind::Scatter}) {
    kinds[std::string(to_string(kind))] = kind;
  }
  add_choice(app, "--collective", options.collective, kinds,
             "allreduce, broadcast, allgather, reducescatter, alltoall, gather or scatter");
  add_choice(app, "-o,--op", options.op, op_names(), "sum, average, min, max or product");
  add_choice(app, "-d,--dtype", options.dtype, dtype_names(), "float32, bfloat16, int64, ...");
  add_choice<Calling>(
      app, "--calling", options.calling,
      {{"blocking", Calling::Blocking}, {"group", Calling::Group}, {"async", Calling::Async}},
      "blocking; group: the tensors of a call as one group; async: each tensor is submitted, "
      "then all are waited for");
  app.add_option("--tensors", options.tensors, "into how many tensors a message is divided")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  app.add_option("-r,--root", options.root, "root of broadcast, gather and scatter")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-c,--check", options.check, "0: do not compare results")->capture_default_str();
  add_choice<DeviceKind>(app, "--device", options.device,
                         {{"host", DeviceKind::Host}, {"cuda", DeviceKind::Cuda}},
                         "where the data are: host, or cuda: on the GPU of each rank");
  add_choice<bool>(app, "--memory", options.registered, {{"registered", true}, {"private", false}},
                   "of the host: registered (allocated by Horon, shared on a host) or private");
}

void add_reports(CLI::App& app, Options& options) {
  add_choice<bool>(app, "--peer", options.peer, {{"none", false}, {"mpi", true}},
                   "mpi: also time the raw MPI collective, in alternation");
  app.add_flag("--stats", options.stats, "also print the least time and the 99th percentile");
  app.add_option("-J,--json", options.json, "also write results to this file");
  app.add_option("--ratio-max", options.ratio_max,
                 "fail if Horon's time is more than this many times the peer's (in place)")
      ->check(CLI::PositiveNumber);
  app.add_option("--idle", options.idle_s,
                 "instead of a collective: CPU time of each rank in this many idle seconds")
      ->check(CLI::PositiveNumber);
  app.add_option("--idle-percent-max", options.idle_percent_max,
                 "fail if an idle rank uses more than this percentage of a core")
      ->check(CLI::PositiveNumber);
}

std::string find_fault(const Options& options) {
  if (options.bytes_min < 1) return "--min-bytes must be at least 1";
  if (options.bytes_max < options.bytes_min) return "--max-bytes is less than --min-bytes";
  if (options.op == ReduceOp::Average && options.dtype == DataType::Bool) {
    return "bool has no average";
  }
  if (options.tensors > 1 && options.calling == Calling::Blocking) {
    return "--tensors needs --calling group or async";
  }
  if (options.calling != Calling::Blocking && options.collective != CollectiveKind::Allreduce) {
    return "--calling group and async are for allreduce";
  }
  if (options.peer && options.device != DeviceKind::Host) return "--peer mpi needs --device host";
  if (options.ratio_max > 0 && !options.peer) return "--ratio-max needs --peer mpi";
  return "";
}

}  // namespace

std::vector<int64_t> Options::sizes() const {
  std::vector<int64_t> result;
  for (int64_t bytes = bytes_min; bytes <= bytes_max; bytes *= step_factor) {
    result.push_back(bytes);
    if (bytes > bytes_max / step_factor) break;
  }
  return result;
}

ParsedOptions parse_options(int argc, const char* const* argv) {
  ParsedOptions parsed;
  CLI::App app(
      "Bandwidth and latency of Horon's collectives. Run it as: mpirun -np 4 horon-bench ...");
  add_sizes(app, parsed.options);
  add_collective(app, parsed.options);
  add_reports(app, parsed.options);
  try {
    app.parse(argc, argv);
    parsed.exit_text = find_fault(parsed.options);
    if (!parsed.exit_text.empty()) {
      parsed.exit_text += "\n";
      parsed.exit_code = 2;
    }
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    parsed.exit_code = app.exit(error, text, text) == 0 ? 0 : 2;
    parsed.exit_text = text.str();
  }
  return parsed;
}

}  // namespace horon::bench
