// The time from submit() to the end of wait(), with one rank and a collective that does nothing:
// queue, controller and executor. The thread that waits steps the loop, unless the background
// thread has been woken first.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "horon/core/execution/executor.h"
#include "horon/core/runtime/runtime.h"
#include "horon/core/transport/in_process_transport.h"
#include "horon/ops/host/host_memory.h"

namespace {

using namespace horon;
using namespace horon::core;

class NothingToDo final : public InFlight {
  Progress step() override { return Progress::Done; }
};

class LonelyAllreduce final : public CollectiveOp {
  std::string_view name() const override { return "lonely_allreduce"; }
  std::string refusal(const BatchFacts&) const override { return ""; }
  std::unique_ptr<InFlight> start(Batch) override { return std::make_unique<NothingToDo>(); }
};

std::unique_ptr<Runtime> make_runtime(const WaitPolicy& policy) {
  std::vector<std::unique_ptr<CollectiveOp>> ops;
  ops.push_back(std::make_unique<LonelyAllreduce>());
  Executor::Parts executor;
  executor.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  std::vector<std::unique_ptr<MemoryDomain>> domains;
  domains.push_back(std::make_unique<ops::HostMemory>(nullptr));
  executor.scratch = std::make_shared<ScratchPool>(std::move(domains));
  Runtime::Parts parts;
  parts.topology.host_of = {0};
  parts.topology.local_ranks = {0};
  parts.transport = std::move(InProcessTransport::make_world(1, policy).front());
  parts.world.executor = std::make_unique<Executor>(std::move(executor));
  return std::make_unique<Runtime>(std::move(parts));
}

// Submits `entries` one after the other, then waits for all.
void submit_to_completion(benchmark::State& state, WaitPolicy policy) {
  const std::unique_ptr<Runtime> runtime = make_runtime(policy);
  std::vector<float> values(1024);
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  std::vector<std::shared_ptr<const EntrySpec>> specs;
  for (int i = 0; i < state.range(0); ++i) {
    EntrySpec spec;
    spec.parts = {{"tensor" + std::to_string(i), {16}}};
    specs.push_back(std::make_shared<const EntrySpec>(spec));
  }
  std::vector<std::shared_ptr<HandleState>> handles;
  for (auto _ : state) {
    handles.clear();
    for (const auto& spec : specs) {
      Submission submission;
      submission.name = spec->parts.front().name;
      submission.spec = spec;
      submission.memory = {{data, data, 16}};
      handles.push_back(runtime->submit(std::move(submission)));
    }
    for (const auto& handle : handles) (void)handle->wait(std::nullopt);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(submit_to_completion, sleeping, WaitPolicy{})
    ->Arg(1)
    ->Arg(64)
    ->Arg(400)
    ->UseRealTime();
BENCHMARK_CAPTURE(submit_to_completion, spinning, WaitPolicy{std::chrono::microseconds(50), 20})
    ->Arg(1)
    ->Arg(64)
    ->Arg(400)
    ->UseRealTime();

// One entry at a time, on the thread that waits for it.
void run_one(benchmark::State& state) {
  const std::unique_ptr<Runtime> runtime = make_runtime({});
  std::vector<float> values(16);
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  EntrySpec spec;
  spec.parts = {{"tensor", {16}}};
  const auto shared_spec = std::make_shared<const EntrySpec>(spec);
  for (auto _ : state) {
    Submission submission;
    submission.name = "tensor";
    submission.spec = shared_spec;
    submission.memory = {{data, data, 16}};
    (void)runtime->run(std::move(submission));
  }
}
BENCHMARK(run_one)->UseRealTime();

}  // namespace
