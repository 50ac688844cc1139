// Loss scaling of complex gradients, of which LibTorch's kernels see the real and imaginary parts.
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "horon/torch_bindings/amp/grad_scaler.h"

namespace horon::complex_scaler_test {
namespace {

using Complex = c10::complex<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor numbers(Complex first, Complex second) {
  return at::tensor(std::vector<Complex>{first, second});
}

TEST(GradScaler, OfComplexGradients) {
  const at::Tensor w = numbers({8, 8}, {8, 8}).requires_grad_(true);
  torch::optim::SGD optimizer({w}, torch::optim::SGDOptions(0.5));
  amp::GradScaler scaler({.init_scale = 4, .growth_interval = 100});
  const at::Tensor divided = numbers({1, 2}, {3, -4});
  for (const bool conjugate : {false, true}) {  // one that autograd has not written to memory
    for (const bool unscaled_first : {false, true}) {
      const at::Tensor scaled = divided * 4;
      w.mutable_grad() = conjugate ? scaled.conj_physical().conj() : scaled;
      if (unscaled_first) {
        scaler.unscale_(optimizer);
        EXPECT_TRUE(w.grad().equal(divided)) << w.grad();
      }
      EXPECT_TRUE(scaler.step(optimizer));
      scaler.update();
    }
  }
  const at::Tensor moved = numbers({6, 4}, {2, 16});
  EXPECT_TRUE(w.equal(moved)) << w;
  for (const Complex bad : {Complex{kInfinity, 1}, Complex{1, kInfinity}}) {
    w.mutable_grad() = numbers({1, 1}, bad);
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(w.equal(moved)) << w;
}

}  // namespace
}  // namespace horon::complex_scaler_test
