// The fusion planner with as many small entries as a deep model has.
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "horon/core/negotiation/fusion_planner.h"

namespace {

using namespace horon;
using namespace horon::core;

ClosedEntry make_entry(int number, DataType dtype) {
  EntrySpec spec;
  spec.dtype = dtype;
  spec.parts = {{"", {64, 64}}};
  ClosedEntry entry;
  entry.name = "layer" + std::to_string(number);
  entry.spec = std::make_shared<const EntrySpec>(spec);
  return entry;
}

// `mixed`: every second entry has another type, so the planner must skip it.
void plan(benchmark::State& state, bool mixed) {
  std::vector<ClosedEntry> entries;
  for (int i = 0; i < state.range(0); ++i) {
    entries.push_back(make_entry(i, mixed && i % 2 == 1 ? DataType::BFloat16 : DataType::Float32));
  }
  constexpr int64_t bytes_max = 1 << 20;  // 64 such entries
  for (auto _ : state) {
    FusionPlanner planner(bytes_max, 256 << 10);
    for (const ClosedEntry& entry : entries) planner.add(entry);
    while (!planner.empty()) benchmark::DoNotOptimize(planner.take_batch());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(plan, alike, false)->Arg(8)->Arg(64)->Arg(400)->Arg(4000);
BENCHMARK_CAPTURE(plan, mixed, true)->Arg(8)->Arg(64)->Arg(400)->Arg(4000);

}  // namespace
