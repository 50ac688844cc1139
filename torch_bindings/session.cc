#include "horon/torch_bindings/session.h"

#include <algorithm>
#include <cstring>
#include <sched.h>
#include <vector>

#include <ATen/Parallel.h>

#include "horon/core/base/config.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"

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
  const int64_t bytes = sizeof(cpu_set_t);
  auto spec = std::make_shared<core::EntrySpec>();
  spec->kind = CollectiveKind::Allgather;
  spec->dtype = DataType::UInt8;
  spec->parts = {{"horon.init.cores", {bytes}}};
  std::vector<std::byte> gathered;
  core::Submission submission;
  submission.name = "horon.init.cores";
  submission.spec = std::move(spec);
  submission.memory = {{reinterpret_cast<const std::byte*>(&own), nullptr, bytes}};
  submission.allocate_output = [&gathered](size_t, int64_t elements) {
    gathered.resize(static_cast<size_t>(elements));
    return gathered.data();
  };
  (void)core::runtime().submit(std::move(submission))->get();
  std::vector<cpu_set_t> cores(gathered.size() / sizeof(cpu_set_t));
  std::memcpy(cores.data(), gathered.data(), cores.size() * sizeof(cpu_set_t));
  return cores;
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
  const core::Config& config = core::runtime().config();
  const core::Topology& topology = core::runtime().topology();
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

void init(const InitOptions& options) {
  if (is_initialized()) return;
  core::init(options);
  divide_cores();
}

c10::Device device() {
  (void)rank();  // refuses to answer outside a session, on every build alike
  return c10::Device(c10::DeviceType::CPU);
}

}  // namespace horon
