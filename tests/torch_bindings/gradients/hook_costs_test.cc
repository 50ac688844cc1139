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
int64_t count_in_backward(Counter count, int64_t parameters, bool reduced) {
  NamedTensors named;
  for (int64_t i = 0; i < parameters; ++i) {
    named.emplace_back("p" + std::to_string(i), at::ones({16}).set_requires_grad(true));
  }
  std::optional<GradientReducer> reducer;
  if (reduced) reducer.emplace(named, GradientReducerOptions{.first_bucket_bytes = 1 << 20});
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int step = 0; step < 6; ++step) {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, parameter] : named) loss = loss + (parameter * 2).sum();
    const int64_t before = count();
    loss.backward();
    least = std::min(least, count() - before);
    if (reduced) reducer->synchronize();
    for (const auto& [name, parameter] : named) parameter.mutable_grad().reset();
  }
  return least;
}

// What reducing adds for each gradient. What it adds for a round varies, as the thread that waits
// may run the loop, but not with the gradients.
double for_each_gradient(Counter count) {
  const auto added = [count](int64_t parameters) {
    return count_in_backward(count, parameters, true) - count_in_backward(count, parameters, false);
  };
  constexpr int64_t kFew = 100;
  constexpr int64_t kMany = 2100;
  return static_cast<double>(added(kMany) - added(kFew)) / (kMany - kFew);
}

// A pre-hook returns its list of gradients by value.
TEST(HookCosts, OneAllocationForEachGradientWhichLibTorchAsksFor) {
  EXPECT_NEAR(for_each_gradient(testing_support::allocations_of_this_thread), 1, 0.1);
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
