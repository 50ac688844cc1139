// What a profiler sees of a training step by NVTX.
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "horon/tests/support/mpi_main.h"
#include "horon/tests/support/nvtx_profiler.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/session.h"

namespace horon::profiler_test {
namespace {

using test::nvtx_profiler;

TEST(Profiler, SeesWhatAStepWaitsForBehindTheBucketsThatItBegan) {
  init();
  const at::Tensor weight = at::ones({4}).requires_grad_();
  GradientReducer reducer({{"weight", weight}}, {.name = "model"});
  constexpr int kSteps = 3;
  for (int step = 0; step < kSteps; ++step) {
    (weight * (test_rank() + 1)).sum().backward();
    reducer.synchronize();
  }
  shutdown();
  const auto waits = nvtx_profiler().ranges_named("synchronize model");
  const auto buckets = nvtx_profiler().ranges_named("allreduce model.bucket.0");
  ASSERT_EQ(waits.size(), kSteps);
  ASSERT_EQ(buckets.size(), kSteps);
  for (int step = 0; step < kSteps; ++step) {
    const auto& wait = waits.at(static_cast<size_t>(step));
    EXPECT_GT(wait.ended_at, buckets.at(static_cast<size_t>(step)).begun_at);
    EXPECT_GT(wait.ended_at, wait.begun_at);
  }
}

}  // namespace
}  // namespace horon::profiler_test
