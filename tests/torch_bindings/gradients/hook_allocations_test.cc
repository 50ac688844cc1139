// What a gradient's way into its bucket allocates on the thread of backward().
#include <cstdint>
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

// Of one backward() in the steady state, over so many parameters.
int64_t allocations_of_backward(int64_t parameters, bool reduced) {
  NamedTensors named;
  for (int64_t i = 0; i < parameters; ++i) {
    named.emplace_back("p" + std::to_string(i), at::ones({16}).set_requires_grad(true));
  }
  std::optional<GradientReducer> reducer;
  if (reduced) reducer.emplace(named, GradientReducerOptions{.first_bucket_bytes = 1 << 20});
  int64_t counted = 0;
  for (int step = 0; step < 4; ++step) {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, parameter] : named) loss = loss + (parameter * 2).sum();
    const int64_t before = testing_support::allocations_of_this_thread();
    loss.backward();
    counted = testing_support::allocations_of_this_thread() - before;
    if (reduced) reducer->synchronize();
    for (const auto& [name, parameter] : named) parameter.mutable_grad().reset();
  }
  return counted;
}

// One for each gradient: a pre-hook returns its list of gradients by value. What a bucket and a
// round allocate does not depend on how many gradients there are.
TEST(HookAllocations, OneForEachGradientWhichLibTorchAsksFor) {
  const auto added = [](int64_t parameters) {
    return allocations_of_backward(parameters, true) - allocations_of_backward(parameters, false);
  };
  constexpr int64_t kFew = 100;
  constexpr int64_t kMany = 500;
  const int64_t few = added(kFew);
  const int64_t many = added(kMany);
  RecordProperty("for_100", static_cast<int>(few));
  RecordProperty("for_500", static_cast<int>(many));
  // A round may allocate a few more or less, as its timing is.
  EXPECT_NEAR(many - few, kMany - kFew, 10) << few << " and " << many;
  EXPECT_LE(few - kFew, 60) << "of a bucket and a round";
}

}  // namespace
}  // namespace horon
