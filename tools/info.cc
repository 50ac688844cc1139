// horon-info: prints the version, how Horon was built, the configuration with the origin of each
// value, and, under mpirun, the hosts of the ranks, which collective is chosen and what a
// collective that comes again costs in messages.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "horon/core/base/config.h"
#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/core/bootstrap/launch.h"
#include "horon/core/bootstrap/mpi_library.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/wire_type.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "info_facts.h"

namespace {

using Json = nlohmann::ordered_json;

Json facts_json() {
  Json facts = Json::object();
  for (const auto& fact : horon::build_facts()) facts[fact.name] = fact.value;
  for (const auto& fact : horon::tools::torch_facts()) facts[fact.name] = fact.value;
  return facts;
}

Json config_json(const horon::core::Config& config) {
  Json knobs = Json::array();
  for (const auto& knob : config.values()) {
    knobs.push_back({{"name", knob.name},
                     {"value", knob.value},
                     {"unit", knob.unit},
                     {"origin", knob.origin},
                     {"meaning", knob.meaning}});
  }
  return knobs;
}

// Without mpirun there is no job to describe, and MPI is not started.
bool has_launcher() {
  const auto& has = horon::core::environment_has;
  return has("OMPI_COMM_WORLD_RANK") || has("PMIX_RANK") || has("PMI_RANK");
}

// Why there is no job, where that is a mistake; else empty.
std::string fault_of_launcher() {
  const std::string fault = horon::core::launch_fault(1);
  return !fault.empty() ? fault : horon::core::missing_pmix(horon::core::MpiLibrary::version());
}

// What `calls` barriers cost this rank in messages, after a few others have been negotiated.
Json protocol_json() {
  constexpr int warm_up = 10;
  constexpr int calls = 1000;
  for (int i = 0; i < warm_up; ++i) horon::barrier();
  const horon::Statistics before = horon::statistics();
  for (int i = 0; i < calls; ++i) horon::barrier();
  const horon::Statistics after = horon::statistics();
  horon::barrier();  // to shut down costs messages: no rank does it before all have counted
  Json counts = {{"barriers", calls}};
  for (const auto& [name, field] : horon::kStatisticNames) {
    counts[std::string(name)] = after.*field - before.*field;
  }
  return counts;
}

// How hier_allreduce cuts float32 between hosts; empty where another op is chosen.
Json between_hosts_json(const horon::core::Topology& topology,
                        const std::vector<std::string>& selection) {
  Json lines = Json::array();
  if (std::ranges::find(selection, "hier_allreduce: chosen") == selection.end()) return lines;
  const horon::ops::HostsLayout layout = horon::ops::make_hosts_layout(topology);
  const horon::ops::WireType wire_dtype =
      horon::ops::wire_type_named(horon::ops::runtime().config().wire_dtype);
  for (const uint64_t bytes : {uint64_t{4} << 10, uint64_t{1} << 20, uint64_t{64} << 20}) {
    const auto count = static_cast<int64_t>(bytes / sizeof(float));
    const horon::ops::ExchangePlan plan =
        horon::ops::plan_exchange(layout, horon::DataType::Float32, horon::ReduceOp::Sum, count,
                                  wire_dtype, horon::ops::constants().constants);
    lines.push_back(
        horon::core::concat(horon::core::bytes_text(bytes), ": ", describe(layout, plan)));
  }
  return lines;
}

// The constants by which algorithms are chosen, and the choices.
Json choices_json() {
  const horon::ops::JobConstants& found = horon::ops::constants();
  return {{"handoff_us", found.constants.handoff_us},
          {"sum_bytes_per_us", found.constants.sum_bytes_per_us},
          {"process_copy_bytes_per_us", found.constants.process_copy_bytes_per_us},
          {"ring_copy_bytes_per_us", found.constants.ring_copy_bytes_per_us},
          {"message_us", found.constants.message_us},
          {"wire_bytes_per_us", found.constants.wire_bytes_per_us},
          {"origin", found.origin},
          {"choices", horon::ops::explain_choices_of_job()}};
}

// Empty where no tensor can be on a GPU.
std::vector<std::string> selection_on_gpus() {
  if (!horon::ops::gpu()->available()) return {};
  return horon::ops::explain_selection({}, horon::CollectiveKind::Allreduce,
                                       horon::DeviceKind::Cuda);
}

// Needs init(); collective.
Json job_json() {
  const horon::core::Topology& topology = horon::ops::runtime().topology();
  const std::vector<std::string> selection = horon::ops::explain_selection();
  return {
      {"size", topology.size},        {"host_of", topology.host_of},
      {"selection", selection},       {"selection_on_gpus", selection_on_gpus()},
      {"algorithms", choices_json()}, {"between_hosts", between_hosts_json(topology, selection)},
      {"protocol", protocol_json()}};
}

void print_choices(const Json& algorithms) {
  const auto number = [&](const char* name) { return algorithms[name].get<double>(); };
  std::cout << "\nalgorithms (" << algorithms["origin"].get<std::string>() << ")\n";
  std::printf("  on a host: a hand-off takes %.2f us; sums add %.0f bytes/us\n",
              number("handoff_us"), number("sum_bytes_per_us"));
  std::printf(
      "  from private memory to private memory: %.0f bytes/us by the kernel, %.0f by way of"
      " shared memory\n",
      number("process_copy_bytes_per_us"), number("ring_copy_bytes_per_us"));
  std::printf("  between hosts: a message takes %.2f us; the network carries %.0f bytes/us\n",
              number("message_us"), number("wire_bytes_per_us"));
  for (const auto& line : algorithms["choices"]) {
    std::printf("  %s\n", line.get<std::string>().c_str());
  }
}

void print_job(const Json& job) {
  std::cout << "\njob: " << job["size"] << (job["size"] == 1 ? " rank\n" : " ranks\n");
  const auto host_of = job["host_of"].get<std::vector<int>>();
  const int hosts = *std::max_element(host_of.begin(), host_of.end()) + 1;
  for (int host = 0; host < hosts; ++host) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < host_of.size(); ++rank) {
      if (host_of[rank] == host) ranks.push_back(static_cast<int>(rank));
    }
    std::cout << "  host " << host << ": " << horon::core::name_ranks(ranks) << '\n';
  }
  std::cout << "\nchoice of allreduce (4 MiB of float32)\n";
  for (const auto& line : job["selection"]) {
    std::cout << "  " << line.get<std::string>() << '\n';
  }
  for (const auto& line : job["between_hosts"]) {
    std::cout << "  hier_allreduce, " << line.get<std::string>() << '\n';
  }
  if (!job["selection_on_gpus"].empty()) std::cout << "\nthe same on GPUs\n";
  for (const auto& line : job["selection_on_gpus"]) {
    std::cout << "  " << line.get<std::string>() << '\n';
  }
  print_choices(job["algorithms"]);
  std::cout << "\ncost of negotiation, on rank 0\n";
  for (const auto& [name, count] : job["protocol"].items()) {
    std::printf("  %-26s %lld\n", name.c_str(), count.get<long long>());
  }
  std::fflush(stdout);
}

void print_text(const Json& all) {
  std::cout << "build\n";
  for (const auto& [name, value] : all["build"].items()) {
    std::printf("  %-18s %s\n", name.c_str(), value.get<std::string>().c_str());
  }
  std::fflush(stdout);
  std::cout << "\nconfiguration\n";
  for (const auto& knob : all["config"]) {
    const auto text = [&](const char* key) { return knob[key].get<std::string>(); };
    const std::string value = horon::core::concat(text("value").empty() ? "-" : text("value"),
                                                  text("unit").empty() ? "" : " ", text("unit"));
    std::printf("  %-26s %-18s %-12s %s\n", text("name").c_str(), value.c_str(),
                text("origin").c_str(), text("meaning").c_str());
  }
  std::fflush(stdout);
  if (all.contains("job")) print_job(all["job"]);
  if (all.contains("no_job")) std::cout << "\nno job: " << all["no_job"].get<std::string>() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Says what this Horon is, what it was built with and how it is configured.\n"
      "Under mpirun also which ranks share a host, which collective is chosen, and what 1,000\n"
      "barriers cost in control messages.",
      "horon-info");
  bool as_json = false;
  app.add_flag("--json", as_json, "print one JSON object");
  CLI11_PARSE(app, argc, argv);
  try {
    Json all = {{"build", facts_json()},
                {"config", config_json(horon::core::Config::from_environment())}};
    int rank = 0;
    if (has_launcher()) {
      horon::init_session();
      rank = horon::rank();
      all["job"] = job_json();
    } else if (const std::string fault = fault_of_launcher(); !fault.empty()) {
      all["no_job"] = fault;
    }
    if (rank == 0) {
      if (as_json) {
        // What is not UTF-8, as the name of a file may be, is replaced.
        std::cout << all.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
      } else {
        print_text(all);
      }
    }
    horon::shutdown();
    if (!std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      std::cerr << "horon-info: standard output could not be written\n";
      return 1;
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "horon-info: " << error.what() << '\n';
    return 1;
  }
}
