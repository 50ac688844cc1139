// What a gradient's way into its bucket costs on the thread of backward(): memory and locks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "horon/tests/support/allocation_counter.h"
#include "horon/tests/support/lock_counter.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"

namespace horon::hook_costs_test {
namespace {

using Counter = int64_t (*)();

// Which backward() of a step is looked at.
enum class Pass : uint8_t {
  Only,
  SecondOfTwo,     // backward_passes_per_step = 2
  SecondInNoSync,  // neither reduces
  SecondRound,     // the first has reduced
};

// The least count in several backward() passes in the steady state, over `parameters` parameters.
int64_t count_in_backward(Counter count, int64_t parameters, int64_t elements,
                          std::optional<GradientReducerOptions> options, Pass pass = Pass::Only) {
  if (options && pass == Pass::SecondOfTwo) options->backward_passes_per_step = 2;
  NamedTensors named;
  for (int64_t i = 0; i < parameters; ++i) {
    named.emplace_back("p" + std::to_string(i), at::ones({elements}).set_requires_grad(true));
  }
  std::optional<GradientReducer> reducer;
  if (options) reducer.emplace(named, *options);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int step = 0; step < 20; ++step) {  // of a busy machine some are quiet
    {
      std::optional<GradientReducer::NoSync> no_sync;
      if (reducer && pass == Pass::SecondInNoSync) no_sync.emplace(reducer->no_sync());
      int64_t before = 0;
      for (int i = pass == Pass::Only ? 1 : 0; i < 2; ++i) {
        at::Tensor loss = at::zeros({});
        for (const auto& [name, parameter] : named) loss = loss + (parameter * 2).sum();
        before = count();
        loss.backward();
      }
      least = std::min(least, count() - before);
    }
    if (reducer) reducer->synchronize();
    for (const auto& [name, parameter] : named) parameter.mutable_grad().reset();
  }
  return least;
}

// What reducing adds for each gradient. It also adds something for each round, which varies, as the
// waiting thread may run the loop, but does not depend on the number of gradients.
double for_each_gradient(Counter count, Pass pass = Pass::Only, WaitIn wait_in = WaitIn::Backward) {
  constexpr int64_t elements = 16;
  const auto added = [=](int64_t parameters) {
    const GradientReducerOptions options{.first_bucket_bytes = 1 << 20, .wait_in = wait_in};
    return count_in_backward(count, parameters, elements, options, pass) -
           count_in_backward(count, parameters, elements, std::nullopt, pass);
  };
  constexpr int64_t few = 100;
  constexpr int64_t many = 400;
  return static_cast<double>(added(many) - added(few)) / (many - few);
}

// What one more bucket adds: the same gradients in a bucket each, and in buckets of two.
double for_each_bucket(Counter count, int64_t parameters, int64_t elements) {
  const auto with_buckets_of = [&](int64_t gradients) {
    const int64_t bytes = gradients * elements * int64_t{sizeof(float)};
    return count_in_backward(
        count, parameters, elements,
        GradientReducerOptions{.bucket_bytes = bytes, .first_bucket_bytes = bytes});
  };
  const int64_t more = parameters - parameters / 2;
  return static_cast<double>(with_buckets_of(1) - with_buckets_of(2)) / static_cast<double>(more);
}

// A pre-hook returns its list of gradients by value.
TEST(HookCosts, OneAllocationForEachGradientWhichLibTorchAsksFor) {
  EXPECT_NEAR(for_each_gradient(testing_support::allocations_of_this_thread), 1, 0.1);
}

// A bucket's submission allocates a handle, a name and a list of memory, and the op keeps something
// while it runs. How much more there is depends on which thread steps the loop.
TEST(HookCosts, FewAllocationsForEachBucket) {
  const Counter count = testing_support::allocations_of_this_thread;
  const double small = for_each_bucket(count, 200, 64);
  const double large = for_each_bucket(count, 24, 100'000);
  RecordProperty("small", std::to_string(small));
  RecordProperty("large", std::to_string(large));
  EXPECT_LE(small, 7);
  EXPECT_LE(large, 7);
}

TEST(HookCosts, ALaterPassAllocatesNoMore) {
  const Counter count = testing_support::allocations_of_this_thread;
  EXPECT_NEAR(for_each_gradient(count, Pass::SecondOfTwo), 1, 0.1);
  EXPECT_NEAR(for_each_gradient(count, Pass::SecondInNoSync), 1, 0.1);
  EXPECT_NEAR(for_each_gradient(count, Pass::SecondRound), 1, 0.1);
}

// Run once more with a timeline, for which hooks note the time.
TEST(HookCosts, NoLock) {
  for (const Pass pass : {Pass::Only, Pass::SecondOfTwo, Pass::SecondInNoSync, Pass::SecondRound}) {
    EXPECT_NEAR(for_each_gradient(testing_support::locks_of_this_thread, pass), 0, 0.1)
        << static_cast<int>(pass);
    if (pass == Pass::SecondRound) continue;  // with WaitIn::Step all passes are one round
    EXPECT_NEAR(for_each_gradient(testing_support::locks_of_this_thread, pass, WaitIn::Step), 0,
                0.1)
        << static_cast<int>(pass);
  }
  const int64_t before = testing_support::locks_of_this_thread();
  std::mutex mutex;
  mutex.lock();
  mutex.unlock();
  EXPECT_EQ(testing_support::locks_of_this_thread(), before + 1) << "they are not counted";
}

// The share of page faults in memory that is freed and allocated again, as by the steps of a
// training.
double part_that_faults() {
  constexpr int64_t pieces = 160;
  constexpr int64_t bytes = 1 << 20;  // of each
  const auto step = [] {
    std::vector<std::vector<std::byte>> all(pieces);
    for (auto& piece : all) piece.assign(bytes, std::byte{1});
  };
  const auto page_faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  for (int i = 0; i < 3; ++i) step();
  const auto before = page_faults();
  step();
  const auto faults = static_cast<double>(page_faults() - before);
  return faults * static_cast<double>(sysconf(_SC_PAGESIZE)) / (pieces * bytes);
}

TEST(HookCosts, AStepFindsTheMemoryOfTheLastOne) {
  if (part_that_faults() < 0.5) GTEST_SKIP() << "the heap is not glibc's own";
  const at::Tensor parameter = at::ones({3}).set_requires_grad(true);
  const GradientReducer reducer(NamedTensors{{"parameter", parameter}}, {});
  EXPECT_LT(part_that_faults(), 0.05);
}

}  // namespace
}  // namespace horon::hook_costs_test
