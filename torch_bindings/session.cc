#include "horon/torch_bindings/session.h"

#include <algorithm>
#include <cstring>
#include <sched.h>
#include <vector>

#include <ATen/Parallel.h>

#include "horon/core/base/config.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/bytes.h"

namespace horon {
namespace {

using core::concat;

cpu_set_t own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // Fails only on machines with more cores than the set can name; then the set stays empty and
  // nothing is divided.
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) CPU_ZERO(&cores);
  return cores;
}

// The core sets of all ranks. A launcher may have bound the ranks to cores already, each to its
// own.
std::vector<cpu_set_t> gather_cores(const cpu_set_t& own) {
  const std::string bytes(reinterpret_cast<const char*>(&own), sizeof(own));
  std::vector<cpu_set_t> all;
  for (const std::string& of_rank : allgather_bytes(bytes, {.name = "horon.init.cores"})) {
    std::memcpy(&all.emplace_back(), of_rank.data(), sizeof(cpu_set_t));
  }
  return all;
}

int count_sharers(const cpu_set_t& own, const std::vector<cpu_set_t>& all,
                  const std::vector<int>& ranks_of_host) {
  const auto shares = [&](int rank) {
    cpu_set_t common;
    CPU_AND(&common, &own, &all.at(static_cast<size_t>(rank)));
    return CPU_COUNT(&common) > 0;
  };
  return static_cast<int>(std::ranges::count_if(ranks_of_host, shares));
}

void divide_cores() {
  const core::Config& config = ops::runtime().config();
  const core::Topology& topology = ops::runtime().topology();
  // Every rank takes part in the exchange, whatever it decides for itself.
  const cpu_set_t own = own_cores();
  const std::vector<cpu_set_t> all = gather_cores(own);
  const int cores = CPU_COUNT(&own);
  const int sharers = count_sharers(own, all, topology.local_ranks);

  int threads = static_cast<int>(config.threads);
  std::string reason = "HORON_THREADS";
  if (threads == 0) {
    const bool chosen_by_user =
        core::environment_has("OMP_NUM_THREADS") || at::get_num_threads() != cores;
    if (chosen_by_user || sharers <= 1) return;
    threads = std::max(1, cores / sharers);
    reason = concat(cores, " cores shared by ", sharers,
                    " ranks; OMP_NUM_THREADS or HORON_THREADS change it");
  }
  at::set_num_threads(threads);
  if (topology.rank == 0) {
    core::log(core::LogLevel::Info,
              concat(threads, threads == 1 ? " thread" : " threads", " per rank (", reason, ")"));
  }
}

}  // namespace

void init(const InitOptions& options, std::string_view headers) {
  // Before anything is read from the options, whose fields may be others in those headers.
  require_headers_of_this_version(headers);
  if (is_initialized()) return;
  init_session(options);
  divide_cores();
}

c10::Device device() {
  (void)rank();  // refuses to answer outside a session, on every build alike
  return c10::Device(c10::DeviceType::CPU);
}

}  // namespace horon
