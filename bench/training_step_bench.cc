// Measures what Horon adds to a training step. The same processes train each model with
// DistributedOptimizer, without any communication, and with nothing but a barrier at the end of
// each step, which is the least that any synchronous training costs. See bench/README.md.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>

#include "horon/bench/json_file.h"
#include "horon/bench/models.h"
#include "horon/bench/standard_output.h"
#include "horon/bench/statistics.h"
#include "horon/bench/training_contenders.h"
#include "horon/core/base/error.h"
#include "horon/core/base/replace_file.h"
#include "horon/core/base/version.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/session.h"

namespace {

using namespace horon;
using bench::Quartiles;
using bench::TrainingTimes;

constexpr double kGradientsShareMin = 0.05;  // of a step

struct Options {
  std::vector<std::string> models = bench::model_names();
  bench::TrainingPlan plan;
  std::string device = "cpu";
  std::string json;
};

std::vector<std::string> all_models() {
  std::vector<std::string> names = bench::model_names();
  const auto& large = bench::large_model_names();
  names.insert(names.end(), large.begin(), large.end());
  return names;
}

at::Device device_of_rank(const std::string& kind) {
  if (kind == "cpu") return at::kCPU;
  const at::Device device = horon::device();
  if (!device.is_cuda()) {
    throw Error(ErrorCode::Config, "--device cuda: Horon has no GPU here (horon-info says why)");
  }
  return device;
}

void print_titles(const Options& options) {
  std::printf("# training_step_bench %s: %d ranks, %d threads each, %s, %s, %d blocks\n",
              std::string(version()).c_str(), size(), at::get_num_threads(), options.device.c_str(),
              options.plan.optimizer.c_str(), options.plan.blocks);
  std::printf("# medians over blocks, in brackets the lower and the upper quartile\n");
  std::printf("%-10s %-29s %10s  %-24s %-24s %s\n", "model", "contender", "ms a step",
              "over a step alone", "over the floor", "CPU time over a step alone");
}

std::string text_of(const std::vector<double>& ratios) {
  const Quartiles quartiles = bench::quartiles(ratios);
  char text[64] = {};
  (void)std::snprintf(text, sizeof(text), "%.3f (%.3f to %.3f)", quartiles.median, quartiles.lower,
                      quartiles.upper);
  return text;
}

void print_model(const TrainingTimes& times) {
  for (const auto& [contender, seconds] : times.seconds) {
    std::printf("%-10s %-29s %10.2f  %-24s %-24s %s\n", times.model.c_str(), contender.c_str(),
                bench::median(seconds) * 1e3, text_of(times.ratios(contender, "alone")).c_str(),
                text_of(times.ratios(contender, "floor")).c_str(),
                text_of(times.cpu_ratios(contender, "alone")).c_str());
  }
  std::printf(
      "# %s: %lld parameters in %lld tensors, %d steps in a block; Horon waits %.2f ms a step; "
      "ranks agree: %s\n",
      times.model.c_str(), static_cast<long long>(times.parameters),
      static_cast<long long>(times.tensors), times.steps, times.exposed_s * 1e3,
      times.ranks_agree ? "yes" : "NO");
  // Shorter ones are lost in the spread of the steps.
  if (times.seconds.contains("gradients") &&
      bench::median(times.ratios("gradients", "floor")) >= kGradientsShareMin) {
    std::printf("# %s: of its allreduces a step hides %s\n", times.model.c_str(),
                text_of(times.hidden()).c_str());
  }
  (void)std::fflush(stdout);
}

nlohmann::json to_json(const Quartiles& quartiles) {
  return {quartiles.lower, quartiles.median, quartiles.upper};
}

nlohmann::json to_json(const TrainingTimes& times) {
  nlohmann::json milliseconds;
  nlohmann::json cpu_milliseconds;
  nlohmann::json ratio_quartiles;
  nlohmann::json over_floor_quartiles;
  for (const auto& [contender, seconds] : times.seconds) {
    for (const double second : seconds) milliseconds[contender].push_back(second * 1e3);
    for (const double second : times.cpu_seconds.at(contender)) {
      cpu_milliseconds[contender].push_back(second * 1e3);
    }
    ratio_quartiles[contender] = to_json(bench::quartiles(times.ratios(contender, "alone")));
    over_floor_quartiles[contender] = to_json(bench::quartiles(times.ratios(contender, "floor")));
  }
  nlohmann::json json{{"model", times.model},
                      {"parameters", times.parameters},
                      {"tensors", times.tensors},
                      {"steps", times.steps},
                      {"block_ms", milliseconds},
                      {"block_cpu_ms", cpu_milliseconds},
                      {"ratio", bench::median(times.ratios("horon", "alone"))},
                      {"floor", bench::median(times.ratios("floor", "alone"))},
                      {"over_floor", bench::median(times.ratios("horon", "floor"))},
                      {"ratio_quartiles", ratio_quartiles},
                      {"over_floor_quartiles", over_floor_quartiles},
                      {"exposed_ms", times.exposed_s * 1e3},
                      {"ranks_agree", times.ranks_agree}};
  if (times.seconds.contains("gradients")) {
    json["hidden_quartiles"] = to_json(bench::quartiles(times.hidden()));
  }
  if (times.seconds.contains("horon_fused")) {
    json["over_floor_fused"] = bench::median(times.ratios("horon_fused", "floor"));
  }
  return json;
}

int measure_all(const Options& options) {
  horon::on_all_ranks([&] {  // before all the work
    if (rank() == 0 && !options.json.empty()) core::require_replaceable(options.json);
  });
  if (rank() == 0) print_titles(options);
  bool all_agree = true;
  nlohmann::json models = nlohmann::json::array();
  bench::MpiPeer peer;
  for (const std::string& name : options.models) {
    const TrainingTimes times = bench::time_training(name, options.plan, peer);
    all_agree = all_agree && times.ranks_agree;
    models.push_back(to_json(times));
    if (rank() == 0) print_model(times);
  }
  if (rank() == 0 && !options.json.empty()) {
    bench::write_json_file(options.json, {{"library", "horon"},
                                          {"version", version()},
                                          {"machine", bench::describe_machine()},
                                          {"ranks", size()},
                                          {"threads", at::get_num_threads()},
                                          {"device", options.device},
                                          {"optimizer", options.plan.optimizer},
                                          {"blocks", options.plan.blocks},
                                          {"models", models}});
  }
  return all_agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What Horon adds to a training step. Run it as: mpirun -np 2 training_step_bench");
  app.add_option("--models", options.models,
                 "some of cnn, resnet18, deep, gpt, tiny, resnet50, gpt2, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(all_models()));
  app.add_option("--device", options.device, "cpu, or cuda: the GPU of each rank")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--optimizer", options.plan.optimizer, "sgd (with momentum), adam or adamw")
      ->check(CLI::IsMember(bench::training_optimizers()));
  app.add_flag("--shard", options.plan.shard,
               "also time steps with the optimizer's state sharded over the ranks");
  app.add_flag("--shuffle", options.plan.shuffled,
               "also time optimizers that were given the parameters in random order, with and "
               "without buckets in the order in which gradients come");
  app.add_option("--local-sgd", options.plan.local_steps,
                 "also time LocalSgd, which averages after this many steps; 0: leave it out")
      ->check(CLI::Range(0, 100'000));
  app.add_option("--power-sgd", options.plan.power_sgd,
                 "also time PowerSgd, whose matrices have this rank; 0: leave it out")
      ->check(CLI::Range(0, 1'000));
  app.add_flag("--buckets", options.plan.buckets,
               "on one rank too, gradients go through buckets and allreduces, as between ranks");
  app.add_option("--blocks", options.plan.blocks, "blocks of steps of each contender")
      ->check(CLI::Range(1, 100'000));
  app.add_option("--steps", options.plan.steps, "steps in a block; 0: about half a second")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--warmup-steps", options.plan.warmup_steps, "untimed steps before the blocks")
      ->check(CLI::Range(1, 100'000));
  app.add_option("-J,--json", options.json, "also write results to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    horon::init();
    options.plan.device = device_of_rank(options.device);
    const int code = measure_all(options);
    horon::shutdown();
    return bench::code_with_output("training_step_bench", code);
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "training_step_bench: %s\n", error.what());
    return 1;
  }
}
