#include "horon/bench/options.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <limits>
#include <map>
#include <sstream>

#include <CLI/CLI.hpp>

#include "horon/core/base/error.h"

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

// Horon's names, and the short ones of nccl-tests. Adasum, the last op, is left out: no peer has
// it.
std::map<std::string, ReduceOp> op_names() {
  auto map = names<ReduceOp>(static_cast<int>(ReduceOp::Adasum));
  map.insert({{"avg", ReduceOp::Average},
              {"prod", ReduceOp::Product},
              {"band", ReduceOp::BitAnd},
              {"bor", ReduceOp::BitOr},
              {"bxor", ReduceOp::BitXor}});
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
    throw CLI::ValidationError(flags, "\"" + text + "\" is not one of " + known);
  };
  app.add_option_function<std::string>(flags, take, description);
}

constexpr double kMost = 1e9;  // of seconds, milliseconds, ratios, ...: no infinity either

// CLI11's own validator names the largest number there is, with its 309 digits.
CLI::Validator at_least(double least, const std::string& otherwise) {
  const auto find_fault = [=](const std::string& text) {
    double value = 0;
    const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= kMost;
    return fits ? std::string() : "\"" + text + "\" " + otherwise;
  };
  return {find_fault, "NUMBER"};
}
CLI::Validator positive() {
  return at_least(std::numeric_limits<double>::min(), "is not a number above 0 and up to 1e9");
}
CLI::Validator not_negative() { return at_least(0, "is not a number from 0 to 1e9"); }

// Also refuses a number that does not fit: CLI11 would take the largest number instead.
void add_bytes(CLI::App& app, const std::string& flags, int64_t& bytes, const std::string& what) {
  const auto find_fault = [](const std::string& text) {
    int64_t number = 0;
    errno = 0;
    const bool fits = CLI::detail::lexical_cast(text, number) && errno != ERANGE;
    return fits ? std::string() : "\"" + text + "\" is not a number of bytes below 2^63";
  };
  // Plain numbers are left to find_fault: versions of CLI11 differ in what they say of long ones.
  const auto multiply = [](std::string& text) {
    const bool has_unit = text.find_first_not_of("0123456789") != std::string::npos;
    return has_unit ? CLI::AsSizeValue(false)(text) : std::string();
  };
  app.add_option(flags, bytes, what)
      ->transform(CLI::Validator(multiply, "SIZE [b, kb(=1024b), ...]"))
      ->check(CLI::Validator(find_fault, ""))
      ->capture_default_str();
}

// "0,2,3"
std::vector<int> ranks_of(const std::string& text) {
  std::vector<int> ranks;
  for (const std::string& one : CLI::detail::split(text, ',')) {
    int rank = -1;
    if (!CLI::detail::lexical_cast(one, rank) || rank < 0) {
      throw CLI::ValidationError(
          "--set", "\"" + text + "\" is neither 'all' nor a list of ranks such as 0,2,3");
    }
    ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    throw CLI::ValidationError("--set", "\"" + text + "\" names a rank twice");
  }
  return ranks;
}

void add_peer(Options& options, const std::string& name) {
  if (name == "none") return;
  for (const PeerKind peer : {PeerKind::Mpi, PeerKind::Tuned, PeerKind::Gloo}) {
    if (name != to_string(peer)) continue;
    if (std::find(options.peers.begin(), options.peers.end(), peer) != options.peers.end()) {
      throw CLI::ValidationError("--peer", "\"" + name + "\" is named twice");
    }
    options.peers.push_back(peer);
    return;
  }
  throw CLI::ValidationError("--peer", "\"" + name + "\" is not one of mpi, tuned, gloo, none");
}

void add_sizes(CLI::App& app, Options& options) {
  add_bytes(app, "-b,--min-bytes", options.bytes_min,
            "smallest message; K, M, G are powers of 1024");
  add_bytes(app, "-e,--max-bytes", options.bytes_max, "largest message");
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
        CollectiveKind::Scatter, CollectiveKind::Barrier}) {
    kinds[std::string(to_string(kind))] = kind;
  }
  add_choice(
      app, "--collective", options.collective, kinds,
      "allreduce, broadcast, allgather, reducescatter, alltoall, gather, scatter or barrier");
  add_choice(app, "-o,--op", options.op, op_names(),
             "sum, average, min, max, product, band, bor or bxor");
  add_choice(app, "-d,--dtype", options.dtype, dtype_names(), "float32, bfloat16, int64, ...");
  add_choice(app, "--compression", options.compression, names<Compression>(kCompressionCount),
             "of an allreduce of float32: none, float16, bfloat16, or int8, which is used only "
             "between hosts; peers send float32");
  add_bytes(app, "--piece-bytes", options.piece_bytes,
            "of an allreduce: the length of its pieces, such as 512KiB; 0: its op chooses");
  add_choice<Calling>(
      app, "--calling", options.calling,
      {{"blocking", Calling::Blocking}, {"group", Calling::Group}, {"async", Calling::Async}},
      "blocking; group: the tensors of a call as one group; async: each tensor is submitted, "
      "then all are waited for");
  app.add_option("--tensors", options.tensors, "number of tensors into which a message is divided")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  app.add_option("-r,--root", options.root, "root of broadcast, gather and scatter")
      ->check(not_negative())
      ->capture_default_str();
  app.add_option("-c,--check", options.check, "0: do not compare results")->capture_default_str();
  const auto take_set = [&options](const std::string& text) {
    options.set_of_all = text == "all";
    if (!options.set_of_all) options.members = ranks_of(text);
  };
  app.add_option_function<std::string>("--set", take_set,
                                       "run in a process set of its own: of all ranks (all), or of "
                                       "some of them (0,2,3), while the others sleep");
  add_choice<Form>(
      app, "--form", options.form,
      {{"both", Form::Both}, {"in-place", Form::InPlace}, {"out-of-place", Form::OutOfPlace}},
      "both, in-place or out-of-place, for allreduce and broadcast; the other kinds have one form");
  add_choice<DeviceKind>(app, "--device", options.device,
                         {{"host", DeviceKind::Host}, {"cuda", DeviceKind::Cuda}},
                         "where the data are: host, or cuda: on the GPU of each rank");
  add_choice<bool>(app, "--memory", options.registered, {{"registered", true}, {"private", false}},
                   "of the host: registered (allocated by Horon, shared on a host) or private");
  app.add_option("--offset", options.offset,
                 "bytes from the beginning of a page to that of private memory, such as 16, which "
                 "malloc() has for large sizes; peers get the same")
      ->check(CLI::Range(0, 4095))
      ->capture_default_str();
}

void add_reports(CLI::App& app, Options& options) {
  const auto take_peers = [&options](const std::string& text) {
    for (const std::string& name : CLI::detail::split(text, ',')) add_peer(options, name);
  };
  app.add_option_function<std::string>(
      "--peer", take_peers,
      "also time these, in alternation: mpi (its own choice of an algorithm), tuned (the best of "
      "Open MPI's algorithms, found anew for each size), gloo; separate several by commas");
  app.add_option("--gloo-interface", options.gloo_interface,
                 "network interface for Gloo, such as eth0; needed if there are several hosts");
  app.add_option("--max-seconds", options.seconds_max,
                 "end the repetitions of each form of a size after this time, but after 5 at the "
                 "earliest; 0: never")
      ->check(not_negative());
  app.add_flag("--stats", options.stats, "also print the least time and the 99th percentile");
  app.add_option("-J,--json", options.json,
                 "also write results to this file; -: to standard output, without the table");
  app.add_option("--ratio-max", options.ratio_max,
                 "fail if Horon's time is more than this many times the first peer's, at some size")
      ->check(positive());
  app.add_option(
         "--idle", options.idle_s,
         "measure the CPU time of each rank in this many idle seconds instead of a collective")
      ->check(positive());
  app.add_option("--idle-percent-max", options.idle_percent_max,
                 "fail if an idle rank uses more than this percentage of a core, as the median of "
                 "ten parts of the time")
      ->check(positive());
}

// "4,10,500": hosts, Gbit/s, microseconds of one way.
void take_network(PredictOptions& predict, const std::string& text) {
  const std::vector<std::string> parts = CLI::detail::split(text, ',');
  predict.network_given = parts.size() == 3 && CLI::detail::lexical_cast(parts[0], predict.hosts) &&
                          CLI::detail::lexical_cast(parts[1], predict.gbit) &&
                          CLI::detail::lexical_cast(parts[2], predict.delay_us) &&
                          predict.hosts >= 2 && predict.gbit > 0 && predict.gbit <= kMost &&
                          predict.delay_us >= 0 && predict.delay_us <= kMost;
  if (predict.network_given) return;
  throw CLI::ValidationError("--network",
                             "\"" + text + "\" is not hosts,Gbit/s,microseconds, such as 4,10,500");
}

void add_prediction(CLI::App& app, PredictOptions& predict) {
  const auto take_model = [&predict](const std::string& text) {
    try {
      predict.model.stages = stages_in(text);
    } catch (const Error& error) {
      throw CLI::ValidationError("--predict", error.what());
    }
  };
  app.add_option_function<std::string>(
      "--predict", take_model,
      "instead of a collective: predict the time of a training step of a model with so many bytes "
      "of gradients (44.7M; here M is 10^6, and MiB 2^20), or bytes:share,bytes:share,... in the "
      "order in which backward makes them, each with its share of the time of backward");
  app.add_option("--alone-ms", predict.model.alone_ms,
                 "with --predict: milliseconds of a step without communication, measured while as "
                 "many ranks compute on a host as will in training")
      ->check(positive());
  app.add_option("--forward-share", predict.model.forward_share,
                 "share of the forward pass in such a step")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--optimizer-share", predict.model.optimizer_share,
                 "share of the optimizer in such a step")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_flag("--rehearse", predict.rehearse,
               "with --predict: also time such a step, made of arithmetic; its time without "
               "communication takes the place of --alone-ms");
  app.add_option_function<std::string>(
      "--network", [&predict](const std::string& text) { take_network(predict, text); },
      "with --predict: also for other hosts with one rank each: hosts,Gbit/s,microseconds of one "
      "way, such as 4,10,500");
}

std::string find_fault_of_prediction(const Options& options) {
  const PredictOptions& predict = options.predict;
  const bool predicts = !predict.model.stages.empty();
  if (predicts && options.device != DeviceKind::Host) return "--predict needs --device host";
  if (predicts && options.dtype != DataType::Float32) return "--predict needs --dtype float32";
  if (predicts != (predict.model.alone_ms > 0)) return "give both --predict and --alone-ms";
  if (predict.network_given && !predicts) return "--network needs --predict";
  if (predict.rehearse && !predicts) return "--rehearse needs --predict";
  if (predict.model.forward_share + predict.model.optimizer_share >= 1) {
    return "--forward-share and --optimizer-share leave no time for backward; their sum must be "
           "below 1";
  }
  return "";
}

// An option that compares nothing would pass for a comparison that went well.
std::string find_fault_of_comparison(const Options& options) {
  const bool predicts = !options.predict.model.stages.empty();
  if (predicts && options.idle_s > 0) return "--idle and --predict can't be combined; choose one";
  if (options.has_own_set() && (predicts || options.idle_s > 0)) {
    return "--set is for collectives: --idle and --predict take all ranks";
  }
  if (!options.peers.empty() && (predicts || options.idle_s > 0)) {
    return predicts ? "--peer is for collectives: --predict compares nothing with a peer"
                    : "--peer is for collectives: --idle compares nothing with a peer";
  }
  if (!options.peers.empty() && options.device != DeviceKind::Host) {
    return "--peer needs --device host";
  }
  if (options.ratio_max > 0 && options.peers.empty()) return "--ratio-max needs --peer";
  const bool has_gloo = std::ranges::find(options.peers, PeerKind::Gloo) != options.peers.end();
  if (!options.gloo_interface.empty() && !has_gloo) return "--gloo-interface needs --peer gloo";
  if (options.idle_percent_max > 0 && options.idle_s <= 0) return "--idle-percent-max needs --idle";
  return "";
}

std::string find_fault(const Options& options) {
  if (options.bytes_min < 1) return "--min-bytes must be at least 1";
  if (options.bytes_max < options.bytes_min) return "--max-bytes is less than --min-bytes";
  const std::string_view undefined = why_no_reduction(options.dtype, options.op);
  if (!undefined.empty()) return std::string(undefined);
  if (options.compression != Compression::None &&
      (options.collective != CollectiveKind::Allreduce || options.dtype != DataType::Float32)) {
    return "--compression needs --collective allreduce and --dtype float32";
  }
  if (options.piece_bytes != 0 &&
      (options.piece_bytes < 0 || options.collective != CollectiveKind::Allreduce)) {
    return "--piece-bytes needs --collective allreduce, and must not be negative";
  }
  if (options.tensors > 1 && options.calling == Calling::Blocking) {
    return "--tensors needs --calling group or async";
  }
  if (options.calling != Calling::Blocking && options.collective != CollectiveKind::Allreduce) {
    return "--calling group and async need --collective allreduce";
  }
  const bool on_host = options.device == DeviceKind::Host;
  if (options.collective == CollectiveKind::Barrier && !on_host) {
    return "a barrier needs --device host";
  }
  if (options.has_own_set() && !on_host) return "--set needs --device host";
  if (!options.registered && !on_host) return "--memory private needs --device host";
  if (options.offset != 0 && options.registered) return "--offset needs --memory private";
  if (options.offset % static_cast<int64_t>(size_of(options.dtype)) != 0) {
    return "--offset must be a multiple of the bytes of an element";
  }
  const std::string of_comparison = find_fault_of_comparison(options);
  return of_comparison.empty() ? find_fault_of_prediction(options) : of_comparison;
}

}  // namespace

std::string_view to_string(PeerKind peer) {
  switch (peer) {
    case PeerKind::Mpi:
      return "mpi";
    case PeerKind::Tuned:
      return "tuned";
    case PeerKind::Gloo:
      return "gloo";
  }
  return "?";
}

std::vector<int64_t> Options::sizes() const {
  if (collective == CollectiveKind::Barrier) return {0};
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
  add_prediction(app, parsed.options.predict);
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
