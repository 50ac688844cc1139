// What it costs a training step that the ranks compare their replicas: the sample of the parameters
// that each rank takes, from memory that is in no cache. (It travels with what is sent anyway.)
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include "horon/torch_bindings/gradients/replica_check.h"

namespace {

using namespace horon::torch_detail;

void empty_caches(std::vector<char>& memory) {
  for (char& byte : memory) ++byte;
  benchmark::ClobberMemory();
}

// Arguments: parameters, elements of each.
void sample(benchmark::State& state) {
  const GradientSettings settings;
  std::deque<GradientSlot> slots;
  for (int64_t i = 0; i < state.range(0); ++i) {
    slots.emplace_back("p" + std::to_string(i), at::zeros({state.range(1)}).requires_grad_(true),
                       settings);
  }
  std::vector<char> memory(64 << 20);
  ReplicaCheck check;
  uint64_t number = 0;
  for (auto _ : state) {
    state.PauseTiming();
    empty_caches(memory);
    state.ResumeTiming();
    benchmark::DoNotOptimize(check.fingerprint(slots, number++));
  }
}
// As the models of training_step_bench, and many tiny tensors.
BENCHMARK(sample)->Args({8, 52'000})->Args({62, 180'000})->Args({402, 2'000})->Args({2000, 64});

}  // namespace
