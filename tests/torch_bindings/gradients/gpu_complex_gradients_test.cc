// Complex gradients in the memory of a GPU: the kernels see two real numbers in each.
#include <gtest/gtest.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::gpu_complex_gradients_test {
namespace {

using namespace testing_support;
using Complex = c10::complex<float>;

TEST(GpuComplexGradients, AreReducedBesideRealOnes) {
  for (const Compression compression : {Compression::None, Compression::BFloat16}) {
    const at::Tensor w = at::ones({300}, at::kComplexFloat).to(device()).requires_grad_(true);
    const at::Tensor real = at::ones({5}).to(device()).requires_grad_(true);
    GradientReducer reducer({{"w", w}, {"real", real}}, {.compression = compression});
    for (int step = 1; step < 4; ++step) {
      for (const at::Tensor& each : {w, real}) each.mutable_grad().reset();
      const auto part = static_cast<float>(step * (rank() + 1));
      w.backward(at::full({300}, Complex(part, -2 * part), at::kComplexFloat).to(device()));
      real.backward(at::full({5}, part).to(device()));
      reducer.synchronize();
      const auto mean = static_cast<float>(step * mean_of_ranks());
      const at::Tensor got = at::view_as_real(w.grad().cpu());
      EXPECT_TRUE(at::allclose(got.select(1, 0), at::full({300}, mean), 0.01)) << got[0];
      EXPECT_TRUE(at::allclose(got.select(1, 1), at::full({300}, -2 * mean), 0.01)) << got[0];
      EXPECT_TRUE(at::allclose(real.grad().cpu(), at::full({5}, mean), 0.01));
    }
  }
}

}  // namespace
}  // namespace horon::gpu_complex_gradients_test
