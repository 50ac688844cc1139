// Which gradients of which optimizers a scaler divides and looks at; complex ones, of which
// LibTorch's kernels see the real and imaginary parts.
#include <limits>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "horon/torch_bindings/amp/grad_scaler.h"

namespace horon::scaled_gradients_test {
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

at::Tensor two_ones() { return at::ones({2}).requires_grad_(true); }

// What is found in the gradients of one lowers the scale, whichever comes last.
TEST(GradScaler, OfSeveralOptimizers) {
  const at::Tensor a = two_ones(), b = two_ones();
  torch::optim::SGD of_a({a}, 1.0), of_b({b}, 1.0);
  for (const bool a_is_bad : {true, false}) {
    amp::GradScaler scaler({.init_scale = 4});
    a.mutable_grad() = at::full({2}, a_is_bad ? kInfinity : 4);
    b.mutable_grad() = at::full({2}, a_is_bad ? 4 : kInfinity);
    EXPECT_EQ(scaler.step(of_a), !a_is_bad);
    EXPECT_EQ(scaler.step(of_b), a_is_bad);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 2);
  }
}

TEST(GradScaler, DividesAParameterThatIsListedTwiceOnce) {
  const at::Tensor a = two_ones();
  torch::optim::SGD twice({a, a}, 1.0);
  amp::GradScaler scaler({.init_scale = 4});
  a.mutable_grad() = at::full({2}, 8.0);
  scaler.unscale_(twice);
  EXPECT_TRUE(a.grad().eq(2).all().item<bool>()) << a.grad();
}

// Gradients that were divided before a restart are not those after it.
TEST(GradScaler, ForgetsWhatItHasDividedWhenItIsLoaded) {
  const at::Tensor a = two_ones();
  torch::optim::SGD optimizer({a}, 1.0);
  amp::GradScaler scaler({.init_scale = 4});
  std::stringstream archive;
  torch::save(scaler, archive);
  a.mutable_grad() = at::full({2}, 1.0);
  scaler.unscale_(optimizer);
  torch::load(scaler, archive);
  a.mutable_grad() = at::full({2}, 4.0);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(a.eq(0).all().item<bool>()) << a;
}

}  // namespace
}  // namespace horon::scaled_gradients_test
