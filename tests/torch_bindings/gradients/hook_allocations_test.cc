// What a gradient's way into its bucket allocates on the thread of backward().
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "horon/tests/support/allocation_counter.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"

namespace horon {
namespace {

const auto* const environment =
    testing::AddGlobalTestEnvironment(new testing_support::SessionEnvironment);

// The least of several backward() in the steady state, over so many parameters.
int64_t allocations_of_backward(int64_t parameters, bool reduced) {
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
    const int64_t before = testing_support::allocations_of_this_thread();
    loss.backward();
    least = std::min(least, testing_support::allocations_of_this_thread() - before);
    if (reduced) reducer->synchronize();
    for (const auto& [name, parameter] : named) parameter.mutable_grad().reset();
  }
  return least;
}

// One for each gradient: a pre-hook returns its list of gradients by value. What a round allocates
// beside that varies, as the thread that waits may run the loop, but not with the gradients.
TEST(HookAllocations, OneForEachGradientWhichLibTorchAsksFor) {
  const auto added = [](int64_t parameters) {
    return allocations_of_backward(parameters, true) - allocations_of_backward(parameters, false);
  };
  constexpr int64_t kFew = 100;
  constexpr int64_t kMany = 2100;
  const int64_t few = added(kFew);
  const int64_t many = added(kMany);
  const double for_each = static_cast<double>(many - few) / (kMany - kFew);
  EXPECT_NEAR(for_each, 1, 0.1) << few << " and " << many;
}

}  // namespace
}  // namespace horon
