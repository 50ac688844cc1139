// What negotiation costs jobs of up to 100,000 ranks: the coordinator, which hears everybody, and
// one member. Their controllers run in this thread. The other ranks exist only as messages and as
// counts of the gate, as that member would make them; what they cost is not in the figures.
//
// The time is that of the coordinator for one step of so many tensors, each an entry of its own.
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "horon/core/negotiation/controller.h"
#include "horon/core/negotiation/ring_gate.h"

namespace {

using namespace horon::core;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct alignas(64) Line {
  std::byte bytes[64];
};

class Job {
 public:
  Job(int size, bool frozen) : size_(size) {
    if (frozen) {
      area_.resize(RingGate::bytes(size) / sizeof(Line));
      for (int rank = 0; rank < 3; ++rank) {
        gates_.push_back(std::make_unique<RingGate>(reinterpret_cast<std::byte*>(area_.data()),
                                                    rank, size, [] {}));
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Controller::Options options;
      options.rank = static_cast<int>(rank);
      options.size = size;
      if (frozen) options.gate = gates_[rank].get();
      ranks_.at(rank) = std::make_unique<Controller>(options);
      ranks_.at(rank)->tick(1);
    }
  }

  void step(const std::vector<std::string>& names, const std::vector<SpecPtr>& specs) {
    std::array<size_t, 2> started = {0, 0};
    if (steps_++ >= kStepsUntilFrozen && !gates_.empty()) fill_others(names.size());
    timed(0, [&] { submit(0, names, specs); });
    timed(1, [&] { submit(1, names, specs); });
    while (started[0] < names.size() || started[1] < names.size()) {
      for (const size_t rank : {size_t{1}, size_t{0}}) started.at(rank) += settle(rank);
    }
  }

  // Since the start.
  double coordinator_s() const { return seconds_[0]; }
  double member_s() const { return seconds_[1]; }
  bool all_frozen(size_t names) const { return ranks_[0]->statistics().freezes == names; }

  static constexpr int kStepsUntilFrozen = 3;

 private:
  template <class Action>
  void timed(size_t rank, const Action& action) {
    const auto begin = Clock::now();
    action();
    seconds_.at(rank) += Seconds(Clock::now() - begin).count();
  }

  void submit(size_t rank, const std::vector<std::string>& names,
              const std::vector<SpecPtr>& specs) {
    for (size_t i = 0; i < names.size(); ++i) {
      ranks_.at(rank)->submit({++ticket_, names[i], specs[i], {}, {}});
    }
  }

  // Each of the other ranks counts itself in at every place.
  void fill_others(size_t places) {
    for (size_t place = 1; place <= places; ++place) {
      for (int other = 2; other < size_; ++other) gates_[2]->fill(static_cast<Place>(place));
    }
  }

  size_t settle(size_t rank) {
    Effects effects;
    timed(rank, [&] { ranks_.at(rank)->take_effects(effects); });
    size_t started = 0;
    for (const StartBatch& batch : effects.starts) started += batch.entries.size();
    timed(rank, [&] {
      for (size_t i = 0; i < effects.starts.size(); ++i) ranks_.at(rank)->batch_finished();
    });
    for (const Outgoing& message : effects.messages) {
      if (rank == 0 && message.to == 1) {
        timed(1, [&] { ranks_[1]->receive(0, message.bytes); });
      } else if (rank == 1) {
        timed(0, [&] {
          for (int from = 1; from < size_; ++from) ranks_[0]->receive(from, message.bytes);
        });
      }
    }
    return started;
  }

  const int size_;
  std::vector<Line> area_;
  std::vector<std::unique_ptr<RingGate>> gates_;  // of ranks 0 and 1, and of all others
  std::array<std::unique_ptr<Controller>, 2> ranks_;
  std::array<double, 2> seconds_ = {0, 0};
  int steps_ = 0;
  Ticket ticket_ = 0;
};

void make_names(int64_t count, const std::string& prefix, std::vector<std::string>& names,
                std::vector<SpecPtr>& specs) {
  names.clear();
  specs.clear();
  for (int64_t i = 0; i < count; ++i) {
    names.push_back(prefix + std::to_string(i) + ".weight");
    EntrySpec spec;
    spec.parts = {{names.back(), {64, 64}}};
    specs.push_back(std::make_shared<const EntrySpec>(spec));
  }
}

enum class Phase { Cold, Cached, Frozen };

void controller_scale(benchmark::State& state, Phase phase) {
  const auto size = static_cast<int>(state.range(0));
  const int64_t tensors = state.range(1);
  Job job(size, phase == Phase::Frozen);
  std::vector<std::string> names;
  std::vector<SpecPtr> specs;
  make_names(tensors, "layer", names, specs);
  for (int i = 0; phase != Phase::Cold && i < Job::kStepsUntilFrozen; ++i) job.step(names, specs);
  if (phase == Phase::Frozen && !job.all_frozen(names.size())) state.SkipWithError("not frozen");
  const double coordinator_before = job.coordinator_s();
  const double member_before = job.member_s();
  int64_t steps = 0;
  for (auto _ : state) {
    if (phase == Phase::Cold) make_names(tensors, std::to_string(steps) + ".", names, specs);
    const double before = job.coordinator_s();
    job.step(names, specs);
    state.SetIterationTime(job.coordinator_s() - before);
    ++steps;
  }
  const double coordinator_ns = (job.coordinator_s() - coordinator_before) * 1e9;
  const auto entries = static_cast<double>(steps * tensors);
  state.counters["coordinator_ns_per_tensor_and_rank"] = coordinator_ns / entries / size;
  state.counters["coordinator_ns_per_tensor"] = coordinator_ns / entries;
  state.counters["member_ns_per_tensor"] = (job.member_s() - member_before) * 1e9 / entries;
}

// More than a million pairs of rank and tensor say nothing new.
void sizes(benchmark::internal::Benchmark* bench, int64_t tensors_max) {
  constexpr int64_t pairs_max = 1'000'000;
  for (const int64_t ranks : {8, 100, 1'000, 10'000, 100'000}) {
    for (const int64_t tensors : {10, 100, 1'000, 10'000}) {
      if (tensors <= tensors_max && ranks * tensors <= pairs_max) bench->Args({ranks, tensors});
    }
  }
}

// New names each time, up to the number that can be cached.
BENCHMARK_CAPTURE(controller_scale, cold, Phase::Cold)
    ->Apply([](auto* bench) { sizes(bench, 10'000); }) -> Iterations(3) -> UseManualTime();
BENCHMARK_CAPTURE(controller_scale, cached, Phase::Cached)
    ->Apply([](auto* bench) { sizes(bench, 10'000); }) -> UseManualTime();
// Up to as many tensors as a gate has counters for.
BENCHMARK_CAPTURE(controller_scale, frozen, Phase::Frozen)
    ->Apply([](auto* bench) { sizes(bench, 1'000); }) -> UseManualTime();

}  // namespace
