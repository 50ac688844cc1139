// The time that an executor takes for each of many batches that are there at once, and whose
// collectives need a few steps each.
#include <memory>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "horon/core/execution/executor.h"
#include "horon/ops/host/host_memory.h"

namespace {

using namespace horon;
using namespace horon::core;

class FewSteps final : public InFlight {
  Progress step() override { return ++steps_ < 3 ? Progress::Polling : Progress::Done; }
  int steps_ = 0;
};

class SlowAllreduce final : public CollectiveOp {
  std::string_view name() const override { return "slow_allreduce"; }
  std::string refusal(const BatchFacts&) const override { return ""; }
  std::unique_ptr<InFlight> start(Batch) override { return std::make_unique<FewSteps>(); }
};

void run_batches(benchmark::State& state) {
  std::vector<std::unique_ptr<CollectiveOp>> ops;
  ops.push_back(std::make_unique<SlowAllreduce>());
  std::vector<std::unique_ptr<MemoryDomain>> domains;
  domains.push_back(std::make_unique<ops::HostMemory>(nullptr));
  Executor::Parts parts;
  parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  parts.scratch = std::make_shared<ScratchPool>(std::move(domains));
  Executor executor(std::move(parts));
  EntrySpec spec;
  spec.parts = {{"tensor", {16}}};
  const auto shared_spec = std::make_shared<const EntrySpec>(spec);
  std::vector<float> values(16);
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  std::vector<FinishedBatch> finished;
  std::vector<EnqueuedBatch> enqueued;
  uint64_t sequence = 0;
  for (auto _ : state) {
    for (int64_t i = 0; i < state.range(0); ++i) {
      BatchWork work;
      work.sequence = sequence++;
      EntryWork& entry = work.entries.emplace_back();
      entry.spec = shared_spec;
      entry.memory = {{data, data, 16}};
      executor.enqueue(std::move(work));
    }
    while (executor.step(finished, enqueued) != Executor::Pace::Idle) finished.clear();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(run_batches)->Arg(1)->Arg(30)->Arg(1000);

}  // namespace
