#include "horon/bench/report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "horon/bench/json_file.h"
#include "horon/core/base/host_name.h"
#include "horon/core/base/text.h"
#include "horon/core/base/version.h"
#include "horon/ops/gpu_facts.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::bench {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 512> text{};
  (void)std::snprintf(text.data(), text.size(), pattern, args...);
  return text.data();
}

double bus_factor(const Options& options, int ranks) {
  return find_case(options.collective).bus_factor(ranks);
}

// Not every collective reduces or has a root.
std::string op_column(const Options& options) {
  return core::reduces(options.collective) ? std::string(to_string(options.op)) : "none";
}

std::string root_column(const Options& options) {
  return core::has_root(options.collective) ? std::to_string(options.root) : "-1";
}

std::string memory_name(const Options& options) {
  if (options.device == DeviceKind::Cuda) return "cuda";
  return options.registered ? "registered" : "private";
}

// Why each op of this kind is chosen or not.
std::vector<std::string> reasons_of(const ProcessSet& set, CollectiveKind kind, DeviceKind device) {
  std::vector<std::string> lines = ops::explain_selection(set, kind, device);
  const std::string ending = core::concat("_", to_string(kind), ":");
  std::erase_if(lines, [&](const std::string& line) { return line.find(ending) == line.npos; });
  return lines;
}

// Printed before the kind of memory. The set that every job has is not named.
std::string set_name(const Options& options) {
  return options.has_own_set() ? "a process set of their own, " : "";
}

// Where this rank is: "host a" or "host a device 0, NVIDIA H100".
std::string place_text(const Options& options) {
  if (options.device == DeviceKind::Host) return core::host_name();
  const auto gpu = ops::gpu();
  if (gpu->device() < 0) return core::host_name();
  return core::concat(core::host_name(), " device ", gpu->device(), ", ",
                      gpu->cuda()->device_name());
}

std::string placement_titles(const Options& options) {
  std::string text = format(" %10s %8s %8s %7s", "time", "algbw", "busbw", "#wrong");
  if (options.stats) text += format(" %10s %10s", "min", "p99");
  for (const PeerKind peer : options.peers) {
    text += format(" %10s %7s", std::string(to_string(peer)).c_str(), "ratio");
  }
  return text;
}

std::string placement_units(const Options& options) {
  std::string text = format(" %10s %8s %8s %7s", "(us)", "(GB/s)", "(GB/s)", "");
  if (options.stats) text += format(" %10s %10s", "(us)", "(us)");
  for (size_t i = 0; i < options.peers.size(); ++i) text += format(" %10s %7s", "(us)", "");
  return text;
}

std::string placement_text(const Options& options, const Row& row,
                           const std::optional<Placement>& placement, int ranks) {
  if (!placement) {
    std::string text = format(" %10s %8s %8s %7s", "-", "-", "-", "-");
    if (options.stats) text += format(" %10s %10s", "-", "-");
    for (size_t i = 0; i < options.peers.size(); ++i) text += format(" %10s %7s", "-", "-");
    return text;
  }
  const Timing& timing = placement->horon;
  const double bandwidth = algbw(row, timing);
  // One rank sends nothing, and a barrier has nothing to send.
  const double factor = bus_factor(options, ranks);
  const std::string bus = factor == 0 ? "-" : format("%.3f", bandwidth * factor);
  const std::string wrong = options.check ? std::to_string(placement->wrong) : "N/A";
  std::string text =
      format(" %10.2f %8.3f %8s %7s", timing.median_s * 1e6, bandwidth, bus.c_str(), wrong.c_str());
  if (options.stats) text += format(" %10.2f %10.2f", timing.min_s * 1e6, timing.p99_s * 1e6);
  for (const PeerTiming& peer : placement->peers) {
    text += format(" %10.2f %7.2f", peer.timing.median_s * 1e6, peer.ratio.median);
  }
  return text;
}

nlohmann::json timing_json(const Row& row, const Timing& timing, double factor) {
  const double bandwidth = algbw(row, timing);
  return {{"time", timing.median_s * 1e6},  {"alg_bw", bandwidth},
          {"bus_bw", bandwidth * factor},   {"time_min", timing.min_s * 1e6},
          {"time_p50", timing.p50_s * 1e6}, {"time_p99", timing.p99_s * 1e6}};
}

nlohmann::json placement_json(const Options& options, const Row& row,
                              const std::optional<Placement>& placement, int ranks) {
  if (!placement) return nullptr;
  const double factor = bus_factor(options, ranks);
  nlohmann::json json = timing_json(row, placement->horon, factor);
  if (options.check) json["nwrong"] = placement->wrong;
  json["repetitions"] = placement->repetitions;
  for (const PeerTiming& peer : placement->peers) {
    nlohmann::json& one = json["peers"][std::string(to_string(peer.peer))];
    one = timing_json(row, peer.timing, factor);
    one["ratio"] = peer.ratio.median;
    one["ratio_quartiles"] = {peer.ratio.lower, peer.ratio.median, peer.ratio.upper};
    if (!peer.algorithm.empty()) one["algorithm"] = peer.algorithm;
  }
  return json;
}

double average_busbw(const std::vector<Row>& rows, const Options& options, int ranks) {
  double sum = 0;
  int count = 0;
  for (const Row& row : rows) {
    for (const auto* placement : {&row.out_of_place, &row.in_place}) {
      if (!*placement) continue;
      sum += algbw(row, (*placement)->horon) * bus_factor(options, ranks);
      ++count;
    }
  }
  return count == 0 ? 0 : sum / count;
}

}  // namespace

double algbw(const Row& row, const Timing& timing) {
  return static_cast<double>(row.shape.message_bytes) / std::max(timing.median_s, 1e-12) / 1e9;
}

std::string header_text(const Options& options, const ProcessSet& set, MpiPeer& mpi) {
  const std::vector<std::string> hosts = mpi.gather_text(core::host_name());
  const std::vector<std::string> places = mpi.gather_text(place_text(options));
  const std::set<std::string> distinct(hosts.begin(), hosts.end());
  std::string text = core::concat("# horon-bench ", version(), ", ", MpiPeer::library_version(),
                                  ", host kernels ", ops::kernel_instruction_set(), "\n");
  if (options.calling != Calling::Blocking) {
    text +=
        core::concat("# each message is ", options.tensors,
                     options.calling == Calling::Group ? " tensor(s) of one group"
                                                       : " tensor(s), submitted, then waited for",
                     "\n");
  }
  text += core::concat("# ", to_string(options.collective), " of ", hosts.size(), " ranks on ",
                       distinct.size(), " host(s), ", set_name(options), memory_name(options),
                       " memory, ", options.iters, " iterations after ", options.warmup_iters,
                       ", validation: ", options.check ? 1 : 0, "\n");
  for (const std::string& line : reasons_of(set, options.collective, options.device)) {
    text += "#   " + line + "\n";
  }
  if (options.device == DeviceKind::Cuda) {
    text += core::concat("# CUDA ", ops::cuda_fact(), "; NCCL ", ops::nccl_fact(), "\n");
  }
  const std::vector<int> ranks = set.ranks();
  constexpr size_t shown = 16;
  for (size_t rank = 0; rank < std::min(hosts.size(), shown); ++rank) {
    text += format("#  Rank %2d on %s\n", ranks[rank], places[rank].c_str());
  }
  if (hosts.size() > shown) text += core::concat("#  and ", hosts.size() - shown, " more\n");
  text +=
      options.device == DeviceKind::Host
          ? "# Data are rewritten before each call, outside the timing; times are medians over\n"
          : "# Calls follow each other in the stream of the GPU; times are medians over\n";
  text += "# repetitions, each as long as its slowest rank took.\n";
  if (!options.peers.empty()) {
    text +=
        "# ratio: Horon's time over the peer's in the same repetition, the median; below 1 Horon\n";
    text += "# is faster.\n";
  }
  return text;
}

std::string column_titles(const Options& options) {
  const int width = static_cast<int>(placement_titles(options).size());
  std::string text = "#\n" + format("#%11s %12s %9s %8s %5s %*s %*s\n", "", "", "", "", "",
                                    width - 1, "out-of-place", width, "in-place");
  text += format("#%11s %12s %9s %8s %5s", "size", "count", "type", "redop", "root");
  text += placement_titles(options) + " " + placement_titles(options) + "\n";
  text += format("#%11s %12s %9s %8s %5s", "(B)", "(elements)", "", "", "");
  return text + placement_units(options) + " " + placement_units(options) + "\n";
}

std::string row_text(const Options& options, const Row& row, int ranks) {
  const std::string text = format(
      "%12lld %12lld %9s %8s %5s", static_cast<long long>(row.shape.message_bytes),
      static_cast<long long>(row.shape.input_count), std::string(to_string(options.dtype)).c_str(),
      op_column(options).c_str(), root_column(options).c_str());
  return text + placement_text(options, row, row.out_of_place, ranks) + " " +
         placement_text(options, row, row.in_place, ranks) + "\n";
}

std::string footer_text(const std::vector<Row>& rows, const Options& options, int ranks) {
  std::string text;
  if (options.check) {
    const int64_t wrong = wrong_in(rows);
    text += core::concat("# Out of bounds values : ", wrong, wrong == 0 ? " OK" : " FAILED", "\n");
  }
  if (ranks > 1) {
    text += format("# Avg bus bandwidth    : %.3f\n", average_busbw(rows, options, ranks));
  }
  if (!options.peers.empty()) {
    text += format("# Worst ratio to %-7s: %.2f\n",
                   std::string(to_string(options.peers.front())).c_str(), worst_ratio(rows));
  }
  return text;
}

nlohmann::json to_json(const Options& options, const ProcessSet& set,
                       const std::vector<Row>& rows) {
  const int ranks = set.size();
  nlohmann::json results = nlohmann::json::array();
  for (const Row& row : rows) {
    results.push_back({{"size", row.shape.message_bytes},
                       {"count", row.shape.input_count},
                       {"type", to_string(options.dtype)},
                       {"redop", op_column(options)},
                       {"root", root_column(options)},
                       {"ping", row.ping_s * 1e6},
                       {"out_of_place", placement_json(options, row, row.out_of_place, ranks)},
                       {"in_place", placement_json(options, row, row.in_place, ranks)}});
  }
  nlohmann::json peers = nlohmann::json::array();
  for (const PeerKind peer : options.peers) peers.push_back(to_string(peer));
  nlohmann::json config = {{"collective", to_string(options.collective)},
                           {"ranks", ranks},
                           {"iters", options.iters},
                           {"warmup_iters", options.warmup_iters},
                           {"check", options.check},
                           {"compression", to_string(options.compression)},
                           {"piece_bytes", options.piece_bytes},
                           {"memory", memory_name(options)},
                           {"offset", options.offset},
                           {"calling", options.calling == Calling::Blocking ? "blocking"
                                       : options.calling == Calling::Group  ? "group"
                                                                            : "async"},
                           {"tensors", options.tensors},
                           {"set", options.has_own_set() ? nlohmann::json(set.ranks()) : "world"},
                           {"peers", peers}};
  return {{"version", version()},
          {"mpi", MpiPeer::library_version()},
          {"machine", describe_machine()},
          {"op_chosen", reasons_of(set, options.collective, options.device)},
          {"config", config},
          {"results", results},
          {"average_bus_bandwidth", average_busbw(rows, options, ranks)},
          {"wrong", wrong_in(rows)},
          {"worst_ratio", worst_ratio(rows)}};
}

int64_t wrong_in(const std::vector<Row>& rows) {
  int64_t wrong = 0;
  for (const Row& row : rows) {
    if (row.out_of_place) wrong += row.out_of_place->wrong;
    if (row.in_place) wrong += row.in_place->wrong;
  }
  return wrong;
}

double worst_ratio(const std::vector<Row>& rows) {
  double worst = 0;
  for (const Row& row : rows) {
    for (const auto* placement : {&row.out_of_place, &row.in_place}) {
      if (!*placement || (*placement)->peers.empty()) continue;
      worst = std::max(worst, (*placement)->peers.front().ratio.median);
    }
  }
  return worst;
}

}  // namespace horon::bench
