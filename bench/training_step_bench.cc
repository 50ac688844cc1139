// Measures what Horon adds to a training step. The same processes train each model with
// DistributedOptimizer and without any communication. Blocks of steps of both alternate in one run,
// and the figure is the median over blocks of the ratio of their times. See bench/README.md.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <CLI/CLI.hpp>
#include <torch/optim/sgd.h>

#include "horon/bench/json_file.h"
#include "horon/bench/models.h"
#include "horon/bench/statistics.h"
#include "horon/core/base/error.h"
#include "horon/core/base/version.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/session.h"

namespace {

using namespace horon;
using bench::TrainingModel;
using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<std::string> models = bench::model_names();
  int blocks = 11;
  int steps = 0;  // in a block; 0: as many as take about half a second
  int warmup_steps = 3;
  std::string json;
};

struct Result {
  std::string model;
  int64_t parameters = 0;
  int64_t tensors = 0;
  int steps = 0;
  std::vector<double> alone_s;  // seconds per step, one for each block, averaged over ranks
  std::vector<double> horon_s;
  double exposed_s = 0;  // seconds per step that the program waited for communication
  bool ranks_agree = false;

  std::vector<double> ratios() const {
    std::vector<double> all;
    for (size_t i = 0; i < alone_s.size(); ++i) all.push_back(horon_s[i] / alone_s[i]);
    return all;
  }
  std::vector<double> added_s() const {
    std::vector<double> all;
    for (size_t i = 0; i < alone_s.size(); ++i) all.push_back(horon_s[i] - alone_s[i]);
    return all;
  }
};

std::vector<at::Tensor> tensors_of(const TrainingModel& model) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : model.parameters) tensors.push_back(tensor);
  return tensors;
}

torch::optim::SGD make_sgd(const TrainingModel& model) {
  return torch::optim::SGD(tensors_of(model), torch::optim::SGDOptions(0.001).momentum(0.9));
}

// Returns the seconds per step on this rank. All ranks begin together.
template <class Optimizer>
double time_steps(const TrainingModel& model, Optimizer& optimizer, int steps) {
  barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    model.loss().backward();
    optimizer.step();
  }
  return std::chrono::duration<double>(Clock::now() - begin).count() / steps;
}

std::vector<double> reduced(const std::vector<double>& values, ReduceOp op) {
  at::Tensor tensor = at::zeros({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.data_ptr<double>());
  allreduce_(tensor, {.name = "bench.values", .op = op});
  return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + values.size()};
}

double reduced(double value, ReduceOp op) { return reduced(std::vector{value}, op).front(); }

// Whether all ranks hold the same parameters, bit by bit.
bool ranks_agree(const TrainingModel& model) {
  for (const auto& [name, tensor] : model.parameters) {
    const at::Tensor mine = tensor.detach();
    const at::Tensor least = allreduce(mine, {.name = "bench.least", .op = ReduceOp::Min});
    const at::Tensor most = allreduce(mine, {.name = "bench.most", .op = ReduceOp::Max});
    if (!least.equal(most) || !least.equal(mine)) return false;
  }
  return true;
}

// Returns the same number on all ranks.
int choose_steps(const Options& options, double step_s) {
  if (options.steps > 0) return options.steps;
  const double slowest = reduced(step_s, ReduceOp::Max);
  return std::clamp(static_cast<int>(0.5 / slowest), 3, 200);
}

Result measure(const std::string& name, const Options& options) {
  const auto batch_seed = static_cast<uint64_t>(rank());
  const TrainingModel alone = bench::make_model(name, batch_seed);
  const TrainingModel shared = bench::make_model(name, batch_seed);
  torch::optim::SGD plain = make_sgd(alone);
  DistributedOptimizer distributed(make_sgd(shared), shared.parameters, {.name = "bench." + name});
  Result result;
  result.model = name;
  result.tensors = static_cast<int64_t>(alone.parameters.size());
  for (const at::Tensor& tensor : tensors_of(alone)) result.parameters += tensor.numel();

  (void)time_steps(shared, distributed, options.warmup_steps);
  result.steps = choose_steps(options, time_steps(alone, plain, options.warmup_steps));
  const double waited_before = distributed.exposed_wait_seconds();
  for (int block = 0; block < options.blocks; ++block) {
    const auto run_alone = [&] {
      result.alone_s.push_back(time_steps(alone, plain, result.steps));
    };
    if (block % 2 == 0) run_alone();
    result.horon_s.push_back(time_steps(shared, distributed, result.steps));
    if (block % 2 != 0) run_alone();
  }
  const double waited = distributed.exposed_wait_seconds() - waited_before;
  result.exposed_s = reduced(waited / (options.blocks * result.steps), ReduceOp::Average);
  result.alone_s = reduced(result.alone_s, ReduceOp::Average);
  result.horon_s = reduced(result.horon_s, ReduceOp::Average);
  result.ranks_agree = ranks_agree(shared);
  return result;
}

void print_titles(const Options& options) {
  std::printf("# training_step_bench %s: %d ranks, %d threads each, %d blocks\n",
              std::string(version()).c_str(), size(), at::get_num_threads(), options.blocks);
  std::printf("# ratio: a step with Horon over a step without communication, median over blocks\n");
  std::printf("%-10s %11s %8s %6s %11s %11s %8s %12s %s\n", "model", "parameters", "tensors",
              "steps", "alone (ms)", "horon (ms)", "ratio", "exposed (ms)", "ranks agree");
}

void print_row(const Result& result) {
  std::printf("%-10s %11lld %8lld %6d %11.2f %11.2f %8.3f %12.3f %s\n", result.model.c_str(),
              static_cast<long long>(result.parameters), static_cast<long long>(result.tensors),
              result.steps, bench::median(result.alone_s) * 1e3,
              bench::median(result.horon_s) * 1e3, bench::median(result.ratios()),
              result.exposed_s * 1e3, result.ranks_agree ? "yes" : "NO");
  (void)std::fflush(stdout);
}

nlohmann::json to_json(const Result& result) {
  return {{"model", result.model},
          {"parameters", result.parameters},
          {"tensors", result.tensors},
          {"steps", result.steps},
          {"alone_ms", bench::median(result.alone_s) * 1e3},
          {"with_ms", bench::median(result.horon_s) * 1e3},
          {"added_ms", bench::median(result.added_s()) * 1e3},
          {"ratio", bench::median(result.ratios())},
          {"ratios", result.ratios()},
          {"exposed_ms", result.exposed_s * 1e3},
          {"ranks_agree", result.ranks_agree}};
}

int measure_all(const Options& options) {
  if (rank() == 0) print_titles(options);
  bool all_agree = true;
  nlohmann::json models = nlohmann::json::array();
  for (const std::string& name : options.models) {
    const Result result = measure(name, options);
    all_agree = all_agree && result.ranks_agree;
    models.push_back(to_json(result));
    if (rank() == 0) print_row(result);
  }
  if (rank() == 0 && !options.json.empty()) {
    bench::write_json_file(options.json, {{"library", "horon"},
                                          {"version", version()},
                                          {"machine", bench::describe_machine()},
                                          {"ranks", size()},
                                          {"threads", at::get_num_threads()},
                                          {"blocks", options.blocks},
                                          {"models", models}});
  }
  return all_agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What Horon adds to a training step. Run it as: mpirun -np 2 training_step_bench");
  app.add_option("--models", options.models,
                 "some of cnn, resnet18, deep, gpt, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(bench::model_names()));
  app.add_option("--blocks", options.blocks, "blocks with communication, and as many without")
      ->check(CLI::Range(1, 100'000));
  app.add_option("--steps", options.steps, "steps in a block; 0: about half a second")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--warmup-steps", options.warmup_steps, "untimed steps before the blocks")
      ->check(CLI::Range(1, 100'000));
  app.add_option("-J,--json", options.json, "also write results to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    horon::init();
    const int code = measure_all(options);
    horon::shutdown();
    return code;
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "training_step_bench: %s\n", error.what());
    return 1;
  }
}
