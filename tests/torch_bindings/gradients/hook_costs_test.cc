// What a gradient's way into its bucket costs on the thread of backward(): memory and locks.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "horon/tests/support/allocation_counter.h"
#include "horon/tests/support/lock_counter.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"

namespace horon {
namespace {

const auto* const environment =
    testing::AddGlobalTestEnvironment(new testing_support::SessionEnvironment);

using Counter = int64_t (*)();

// The least of several backward() in the steady state, over so many parameters.
int64_t count_in_backward(Counter count, int64_t parameters, int64_t elements,
                          const std::optional<GradientReducerOptions>& options) {
  NamedTensors named;
  for (int64_t i = 0; i < parameters; ++i) {
    named.emplace_back("p" + std::to_string(i), at::ones({elements}).set_requires_grad(true));
  }
  std::optional<GradientReducer> reducer;
  if (options) reducer.emplace(named, *options);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int step = 0; step < 10; ++step) {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, parameter] : named) loss = loss + (parameter * 2).sum();
    const int64_t before = count();
    loss.backward();
    least = std::min(least, count() - before);
    if (reducer) reducer->synchronize();
    for (const auto& [name, parameter] : named) parameter.mutable_grad().reset();
  }
  return least;
}

// What reducing adds for each gradient. What it adds for a round varies, as the thread that waits
// may run the loop, but not with the gradients.
double for_each_gradient(Counter count) {
  constexpr int64_t elements = 16;
  const auto added = [count](int64_t parameters) {
    return count_in_backward(count, parameters, elements,
                             GradientReducerOptions{.first_bucket_bytes = 1 << 20}) -
           count_in_backward(count, parameters, elements, std::nullopt);
  };
  constexpr int64_t few = 100;
  constexpr int64_t many = 2100;
  return static_cast<double>(added(many) - added(few)) / (many - few);
}

// What one bucket more adds, for as many gradients: each in a bucket of its own, and two in each.
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

// The handle, the name and the list of memory of its submission, and what the op keeps while it
// runs. The rest depends on which thread steps the loop.
TEST(HookCosts, FewAllocationsForEachBucket) {
  const Counter count = testing_support::allocations_of_this_thread;
  const double small = for_each_bucket(count, 200, 64);
  const double large = for_each_bucket(count, 24, 100'000);
  RecordProperty("small", std::to_string(small));
  RecordProperty("large", std::to_string(large));
  EXPECT_LE(small, 7);
  EXPECT_LE(large, 7);
}

TEST(HookCosts, NoLock) {
  EXPECT_NEAR(for_each_gradient(testing_support::locks_of_this_thread), 0, 0.1);
  const int64_t before = testing_support::locks_of_this_thread();
  std::mutex mutex;
  mutex.lock();
  mutex.unlock();
  EXPECT_EQ(testing_support::locks_of_this_thread(), before + 1) << "they are not counted";
}

}  // namespace
}  // namespace horon
