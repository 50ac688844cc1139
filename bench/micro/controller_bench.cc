// The control protocol alone: N controllers in one thread, and messages are delivered at once. The
// figure is the processor time of all N controllers together, per entry; in a job each of N
// processes spends a part of it.
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "horon/core/negotiation/controller.h"

namespace {

using namespace horon::core;

SpecPtr make_spec(const std::string& name) {
  EntrySpec spec;
  spec.parts = {{name, {64, 64}}};
  return std::make_shared<const EntrySpec>(spec);
}

class World {
 public:
  explicit World(int size) {
    for (int rank = 0; rank < size; ++rank) {
      Controller::Options options;
      options.rank = rank;
      options.size = size;
      ranks_.push_back(std::make_unique<Controller>(options));
      ranks_.back()->tick(1);
    }
  }

  // Every rank submits the same entries; then messages are delivered until all ranks start them
  // all.
  void run(const std::vector<std::string>& names, const std::vector<SpecPtr>& specs) {
    for (auto& rank : ranks_) {
      for (size_t i = 0; i < names.size(); ++i)
        rank->submit({++ticket_, names[i], specs[i], {}, {}});
    }
    size_t started = 0;
    // Rank 0 is the coordinator, so the messages of the others come first.
    while (started < names.size() * ranks_.size()) {
      for (size_t rank = ranks_.size(); rank-- > 0;) started += settle(static_cast<int>(rank));
    }
  }

 private:
  size_t settle(int rank) {
    Controller& controller = *ranks_[static_cast<size_t>(rank)];
    size_t started = 0;
    for (bool again = true; again;) {
      const Effects effects = controller.take_effects();
      for (const Outgoing& message : effects.messages) {
        ranks_[static_cast<size_t>(message.to)]->receive(rank, message.bytes);
      }
      for (const StartBatch& batch : effects.starts) {
        started += batch.entries.size();
        controller.batch_finished();
      }
      again = !effects.starts.empty();
    }
    return started;
  }

  std::vector<std::unique_ptr<Controller>> ranks_;
  Ticket ticket_ = 0;
};

// One entry whose name and spec all ranks know already.
void controller_cached(benchmark::State& state) {
  World world(static_cast<int>(state.range(0)));
  const std::vector<std::string> names{"gradient"};
  const std::vector<SpecPtr> specs{make_spec("gradient")};
  world.run(names, specs);
  for (auto _ : state) world.run(names, specs);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(controller_cached)->RangeMultiplier(4)->Range(2, 2048);

// The same with 400 entries at a time, as in a training step with many small tensors. The time is
// that of all 400.
void controller_cached_400(benchmark::State& state) {
  World world(static_cast<int>(state.range(0)));
  std::vector<std::string> names;
  std::vector<SpecPtr> specs;
  for (int i = 0; i < 400; ++i) {
    names.push_back("layer" + std::to_string(i) + ".weight");
    specs.push_back(make_spec(names.back()));
  }
  world.run(names, specs);
  for (auto _ : state) world.run(names, specs);
  state.SetItemsProcessed(state.iterations() * 400);
}
BENCHMARK(controller_cached_400)->RangeMultiplier(4)->Range(2, 128);

// A name that is new to all ranks: name and spec are sent and compared.
void controller_cold(benchmark::State& state) {
  World world(static_cast<int>(state.range(0)));
  int64_t number = 0;
  for (auto _ : state) {
    const std::string name = "tensor" + std::to_string(number++);
    world.run({name}, {make_spec(name)});
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(controller_cold)->RangeMultiplier(4)->Range(2, 512);

}  // namespace
