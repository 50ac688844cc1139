// The memory of buckets on a GPU belongs to the stream in which the buckets were made. It must live
// until the streams that train have used it for the last time.
#include <chrono>
#include <optional>
#include <thread>

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"

namespace horon::gpu_bucket_memory_test {
namespace {

TEST(GpuBucketMemory, IsReadInAnotherStreamAfterTheReducerHasEnded) {
  const at::Tensor one = at::ones({1}, device());
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); };
  for (int number = 0; number < 3; ++number) {
    const at::Tensor w = at::ones({300}, device()).requires_grad_(true);
    std::optional<GradientReducer> reducer;
    reducer.emplace(NamedTensors({{"w", w}}));
    test::drain_current_stream(device().index());
    const c10::StreamGuard guard(test::new_stream(device().index()));
    w.mul(rank() + 1.0).sum().backward();
    reducer->synchronize();
    test::enqueue_in_current_stream(sleep, device().index());
    const at::Tensor copy = at::empty({300}, device());
    copy.copy_(w.grad());
    w.mutable_grad().reset();
    reducer.reset();
    for (int i = 0; i < 2; ++i) (void)allreduce(one);  // the runtime lets go of what has ended
    EXPECT_TRUE(at::equal(copy.cpu(), at::full({300}, (size() + 1) / 2.0F))) << copy.cpu().mean();
  }
}

}  // namespace
}  // namespace horon::gpu_bucket_memory_test
