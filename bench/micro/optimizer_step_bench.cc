// The optimizer's step alone: LibTorch's own, the one in one pass, and both with the gradients
// clipped by their norm. No communication, one thread.
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "horon/torch_bindings/gradients/fused_step.h"
#include "horon/torch_bindings/gradients/step_scaling.h"
#include "horon/torch_bindings/lr/lamb.h"
#include "horon/torch_bindings/lr/lars.h"

namespace {

using namespace horon;
using namespace horon::torch_detail;
namespace optim = torch::optim;

constexpr double kSmallNorm = 1e-3;  // every step is clipped

std::vector<at::Tensor> make_parameters(int64_t count, int64_t size) {
  std::vector<at::Tensor> parameters;
  for (int64_t i = 0; i < count; ++i) {
    parameters.push_back(at::randn({size}).set_requires_grad(true));
    parameters.back().mutable_grad() = at::randn({size});
  }
  return parameters;
}

template <class Opt>
Opt make(const std::vector<at::Tensor>& parameters);
template <>
optim::SGD make(const std::vector<at::Tensor>& parameters) {
  return optim::SGD(parameters, optim::SGDOptions(1e-3).momentum(0.9));
}
template <>
optim::Adam make(const std::vector<at::Tensor>& parameters) {
  return optim::Adam(parameters, optim::AdamOptions(1e-3));
}
template <>
Lars make(const std::vector<at::Tensor>& parameters) {
  return Lars(parameters, LarsOptions(1e-3).weight_decay(1e-4));
}
template <>
Lamb make(const std::vector<at::Tensor>& parameters) {
  return Lamb(parameters, LambOptions(1e-3).weight_decay(1e-4));
}

// Arguments of all: parameters, elements of each.
template <class Opt>
void own(benchmark::State& state) {
  auto parameters = make_parameters(state.range(0), state.range(1));
  Opt optimizer = make<Opt>(parameters);
  for (auto _ : state) optimizer.step();
}

template <class Opt>
void own_clipped(benchmark::State& state) {
  auto parameters = make_parameters(state.range(0), state.range(1));
  Opt optimizer = make<Opt>(parameters);
  for (auto _ : state) {
    torch::nn::utils::clip_grad_norm_(parameters, kSmallNorm);
    optimizer.step();
  }
}

template <class Opt>
void fused(benchmark::State& state) {
  auto parameters = make_parameters(state.range(0), state.range(1));
  Opt optimizer = make<Opt>(parameters);
  FusedUpdate update(FusedStep::WherePossible);
  for (auto _ : state) (void)update.update(optimizer);
}

template <class Opt>
void fused_with(benchmark::State& state, double norm) {
  auto parameters = make_parameters(state.range(0), state.range(1));
  Opt optimizer = make<Opt>(parameters);
  FusedUpdate update(FusedStep::WherePossible);
  StepScaling scaling({.clip_grad_norm = norm});
  for (auto _ : state) {
    scaling.decide(optimizer.param_groups());
    (void)update.update(optimizer, scaling.factor());
  }
}

template <class Opt>
void fused_clipped(benchmark::State& state) {
  fused_with<Opt>(state, kSmallNorm);
}

template <class Opt>
void fused_measured(benchmark::State& state) {
  fused_with<Opt>(state, std::numeric_limits<double>::infinity());
}

void models(benchmark::internal::Benchmark* benchmark) {
  at::set_num_threads(1);
  benchmark->Args({2000, 64})->Args({400, 2'000})->Args({60, 190'000})->Args({10, 1'000'000});
  benchmark->Unit(benchmark::kMicrosecond);
}

BENCHMARK_TEMPLATE(own, optim::SGD)->Apply(models);
BENCHMARK_TEMPLATE(own_clipped, optim::SGD)->Apply(models);
BENCHMARK_TEMPLATE(fused, optim::SGD)->Apply(models);
BENCHMARK_TEMPLATE(fused_measured, optim::SGD)->Apply(models);
BENCHMARK_TEMPLATE(fused_clipped, optim::SGD)->Apply(models);
BENCHMARK_TEMPLATE(own, optim::Adam)->Apply(models);
BENCHMARK_TEMPLATE(own_clipped, optim::Adam)->Apply(models);
BENCHMARK_TEMPLATE(fused, optim::Adam)->Apply(models);
BENCHMARK_TEMPLATE(fused_clipped, optim::Adam)->Apply(models);
BENCHMARK_TEMPLATE(own, Lars)->Apply(models);
BENCHMARK_TEMPLATE(own, Lamb)->Apply(models);

}  // namespace
