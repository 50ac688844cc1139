#include "horon/ops/timing/job_constants.h"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "horon/core/base/host_name.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/ops/choice/constants_file.h"
#include "horon/ops/timing/host_timing.h"

namespace horon::ops {
namespace {

using core::Bootstrap;
using core::concat;

// What a rank has measured. Only ranks that lead measure anything.
struct Measured {
  MachineConstants constants;
  bool host_expected = false;
  bool host = false;
  bool copies = false;
  bool wire = false;
};

int64_t days_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::hours>(now).count() / 24;
}

bool leads_its_host(const core::Topology& topology) { return topology.local_rank == 0; }

// Empty but on the first rank of each host. Where the kernel does not copy, it is not measured.
std::string host_in_words(const core::Topology& topology, const MeasuredJob& job) {
  if (!leads_its_host(topology)) return "";
  const bool copies = topology.local_size < 2 || job.peer_process != 0;
  return copies ? job.host_name : concat(job.host_name, " without CMA");
}

// "2 hosts: a 2, b 1". Of many hosts a number stands for their names.
std::string words_for_job(const core::Topology& topology, const std::vector<std::string>& names) {
  std::vector<int> ranks(static_cast<size_t>(topology.host_count()));
  for (const int host : topology.host_of) ++ranks[static_cast<size_t>(host)];
  std::string list;
  const std::vector<int> leaders = topology.leaders();
  for (size_t host = 0; host < leaders.size(); ++host) {
    list +=
        concat(host == 0 ? "" : ", ", names[static_cast<size_t>(leaders[host])], " ", ranks[host]);
  }
  constexpr size_t kLong = 200;
  if (list.size() > kLong) list = concat("number ", core::hash_of(list));
  return concat(leaders.size(), leaders.size() == 1 ? " host: " : " hosts: ", list);
}

// Hosts 0 and 1 measure their wire, 2 and 3, and so on; -1: the last of an odd number.
int wire_peer(const core::Topology& topology) {
  const std::vector<int> leaders = topology.leaders();
  const auto host = static_cast<size_t>(topology.host_of[static_cast<size_t>(topology.rank)]);
  const size_t other = host % 2 == 0 ? host + 1 : host - 1;
  return other < leaders.size() ? leaders[other] : -1;
}

void measure_host(const core::Topology& topology, const MeasuredJob& job, Measured& mine) {
  if (topology.local_size < 2 || topology.local_rank > 1) return;
  mine.host_expected = leads_its_host(topology);
  if (job.area == nullptr) return;
  const auto times =
      HostTiming::measure(job.area, leads_its_host(topology), job.peer_process, job.host_limit);
  if (!times) return;
  mine.host = true;
  mine.constants.handoff_us = times->handoff_us;
  mine.constants.sum_bytes_per_us = times->sum_bytes_per_us;
  if (job.peer_process == 0) return;
  mine.copies = true;
  mine.constants.process_copy_bytes_per_us = times->process_copy_bytes_per_us;
  mine.constants.ring_copy_bytes_per_us = times->ring_copy_bytes_per_us;
}

// Logs an error at once, before the ranks tell each other: the calls by which they do so wait for a
// peer without a limit.
std::optional<WireTiming::Times> time_wire(std::shared_ptr<Messages> messages, int peer, bool leads,
                                           const WireTiming::Limits& limits) {
  try {
    return WireTiming::measure(std::move(messages), peer, leads, limits);
  } catch (const std::exception& error) {
    core::log(core::LogLevel::Error, error.what());
    throw;
  }
}

void measure_wire(const core::Topology& topology, const MeasuredJob& job, Measured& mine) {
  if (topology.one_host() || !leads_its_host(topology)) return;
  const int peer = wire_peer(topology);
  if (peer < 0) return;
  const auto times = time_wire(job.messages(), peer, topology.rank < peer, job.wire_limits);
  if (!times) return;
  mine.wire = true;
  mine.constants.message_us = times->message_us;
  mine.constants.wire_bytes_per_us = times->wire_bytes_per_us;
}

// A kind that nobody has measured keeps its defaults.
MachineConstants slowest_of(const std::vector<Measured>& all) {
  std::optional<MachineConstants> host;
  std::optional<MachineConstants> wire;
  // The two rates are compared, so both come from one host: the one on which the kernel is worst.
  std::optional<MachineConstants> copies;
  const auto ratio = [](const MachineConstants& of_host) {
    return of_host.process_copy_bytes_per_us / of_host.ring_copy_bytes_per_us;
  };
  const auto take = [](std::optional<MachineConstants>& worst, const MachineConstants& next) {
    worst = worst ? slowest(*worst, next) : next;
  };
  for (const Measured& one : all) {
    if (one.host) take(host, one.constants);
    if (one.wire) take(wire, one.constants);
    if (one.copies && (!copies || ratio(one.constants) < ratio(*copies))) copies = one.constants;
  }
  MachineConstants together;
  if (host) {
    together.handoff_us = host->handoff_us;
    together.sum_bytes_per_us = host->sum_bytes_per_us;
  }
  if (copies) {
    together.process_copy_bytes_per_us = copies->process_copy_bytes_per_us;
    together.ring_copy_bytes_per_us = copies->ring_copy_bytes_per_us;
  }
  if (wire) {
    together.message_us = wire->message_us;
    together.wire_bytes_per_us = wire->wire_bytes_per_us;
  }
  return within_reason(together);
}

// "hand-offs on 1 host"; empty if all was measured that there is. A network that can't be measured
// is an error.
std::string not_measured(const std::vector<Measured>& all) {
  int hosts = 0;
  for (const Measured& one : all) {
    if (one.host_expected && !one.host) ++hosts;
  }
  if (hosts == 0) return "";
  return concat("hand-offs on ", hosts, hosts == 1 ? " host" : " hosts");
}

std::vector<Measured> measure_job(const Bootstrap& bootstrap, const MeasuredJob& job) {
  Measured mine;
  core::run_on_all(bootstrap, [&] {
    measure_host(bootstrap.topology(), job, mine);
    measure_wire(bootstrap.topology(), job, mine);
  });
  return core::allgather_values(bootstrap, Bootstrap::Among::Job, mine);
}

}  // namespace

JobConstants find_job_constants(const Bootstrap& bootstrap, const core::Config& config,
                                const MeasuredJob& job) {
  const core::Topology& topology = bootstrap.topology();
  if (topology.size == 1) return {{}, "defaults: there is one rank"};
  if (config.measure == "off") return {{}, "defaults: HORON_MEASURE=off"};
  const std::string words = words_for_job(
      topology, bootstrap.allgather(Bootstrap::Among::Job, host_in_words(topology, job)));
  const ConstantsFile file(config.measure_file.empty() ? default_constants_path(core::host_name())
                                                       : config.measure_file);
  // Rank 0 decides: its text has the constants and the path of the file, or is empty.
  std::string kept;
  if (topology.rank == 0 && config.measure == "auto") {
    if (const auto found = file.load(words, days_since_1970())) {
      kept = concat(to_text(*found), "\n", file.path());
    }
  }
  kept = bootstrap.allgather(Bootstrap::Among::Job, kept).front();
  const size_t line_end = kept.find('\n');
  if (line_end != std::string::npos) {
    if (const auto constants = constants_in(kept.substr(0, line_end))) {
      return {*constants, concat("read from ", kept.substr(line_end + 1))};
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Measured> measured = measure_job(bootstrap, job);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  const MachineConstants constants = slowest_of(measured);
  std::string origin = concat("measured in ", took.count(), " ms");
  // Defaults that stand in for missing measurements must not be kept as if they were measured.
  const std::string missing = not_measured(measured);
  if (!missing.empty()) return {constants, concat(origin, ", but not ", missing, ": not kept")};
  const bool saved = topology.rank == 0 && file.save(words, days_since_1970(), constants);
  if (saved) origin += concat(", kept in ", file.path());
  return {constants, origin};
}

}  // namespace horon::ops
