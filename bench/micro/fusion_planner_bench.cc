// The fusion planner with as many small entries as a deep model has.
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "horon/core/negotiation/fusion_planner.h"

namespace {

using namespace horon;
using namespace horon::core;

enum class Mix : uint8_t { Alike, TwoTypes, Unlike };

ClosedEntry make_entry(int number, Mix mix) {
  EntrySpec spec;
  if (mix == Mix::TwoTypes && number % 2 == 1) spec.dtype = DataType::BFloat16;
  if (mix == Mix::Unlike) spec.prescale = number;
  spec.parts = {{"", {64, 64}}};
  ClosedEntry entry;
  entry.name = "layer" + std::to_string(number);
  entry.spec = std::make_shared<const EntrySpec>(spec);
  return entry;
}

void plan(benchmark::State& state, Mix mix) {
  std::vector<ClosedEntry> entries;
  for (int i = 0; i < state.range(0); ++i) entries.push_back(make_entry(i, mix));
  constexpr int64_t bytes_max = 1 << 20;  // 64 such entries
  for (auto _ : state) {
    FusionPlanner planner(bytes_max, 256 << 10);
    for (const ClosedEntry& entry : entries) planner.add(entry);
    while (!planner.empty()) benchmark::DoNotOptimize(planner.take_batch());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(plan, alike, Mix::Alike)->Arg(8)->Arg(64)->Arg(400)->Arg(4000);
BENCHMARK_CAPTURE(plan, mixed, Mix::TwoTypes)->Arg(8)->Arg(64)->Arg(400)->Arg(4000);
BENCHMARK_CAPTURE(plan, unlike, Mix::Unlike)->Arg(8)->Arg(64)->Arg(400)->Arg(4000);

}  // namespace
