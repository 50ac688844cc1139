// Small models whose gradients are known beforehand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"

namespace horon::testing_support {

inline at::Tensor leaf(std::vector<int64_t> shape, at::ScalarType dtype = at::kFloat) {
  return at::ones(shape, dtype).requires_grad_(true);
}

// The gradient of weighted(w, x) in w is x everywhere.
inline at::Tensor weighted(const at::Tensor& w, double x) { return (w * x).sum(); }

// What the gradient of weighted(w, rank + 1) comes to.
inline double mean_of_ranks() { return (size() + 1) / 2.0; }
inline double sum_of_ranks() { return size() * (size() + 1) / 2.0; }

inline void expect_gradient(const at::Tensor& parameter, double value, double tolerance = 1e-6) {
  ASSERT_TRUE(parameter.grad().defined());
  EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
  const at::Tensor want = at::full(parameter.sizes(), value, at::kDouble);
  EXPECT_TRUE(
      at::allclose(parameter.grad().to(at::kDouble), want, tolerance, std::min(1e-9, tolerance)))
      << parameter.grad() << "\nand not " << value;
}

// Averages in doubles are right to the last digits.
inline void expect_close(const at::Tensor& parameter, double value) {
  expect_gradient(parameter, value, 1e-12);
}

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// One bucket for each parameter.
inline GradientReducerOptions alone(ReduceOp op = ReduceOp::Average,
                                    WaitIn wait_in = WaitIn::Backward) {
  return {.op = op, .bucket_bytes = 1, .first_bucket_bytes = 1, .wait_in = wait_in};
}

// For what happens to gradients while they are being reduced: nothing waits before synchronize().
inline GradientReducerOptions in_flight(ReduceOp op = ReduceOp::Average) {
  return alone(op, WaitIn::Step);
}

// Calls a function from inside backward(), after the gradient has been accumulated.
template <class Function>
void call_after(const at::Tensor& parameter, Function function) {
  class Hook : public ::torch::autograd::PostAccumulateGradHook {
   public:
    explicit Hook(Function f) : function_(std::move(f)) {}
    void operator()(const at::Tensor& tensor) override { function_(tensor); }

   private:
    Function function_;
  };
  ::torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                   std::make_unique<Hook>(std::move(function)));
}

}  // namespace horon::testing_support
