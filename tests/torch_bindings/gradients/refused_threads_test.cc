// The end of backward() where the system gives no more threads.
#include "horon/tests/support/thread_refusal.h"
#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::refused_threads_test {
namespace {

using namespace testing_support;

// Two reducers end in one backward(), and each has a late part, on which the ranks must agree. All
// ranks do so on threads, except the first rank, which gets none.
TEST(RefusedThreads, ReducersAgreeOneAfterTheOther) {
  const at::Tensor a = leaf({2}, at::kDouble), b = leaf({2}, at::kDouble);
  const at::Tensor c = leaf({2}, at::kDouble), d = leaf({2}, at::kDouble);  // come last
  GradientReducer first({{"c", c}, {"a", a}}, alone()), second({{"d", d}, {"b", b}}, alone());
  for (int step = 1; step <= 3; ++step) {
    for (const at::Tensor& w : {a, b, c, d}) w.mutable_grad().reset();
    const at::Tensor x = at::full({2}, rank() + 1.0, at::kDouble).requires_grad_(true);
    const at::Tensor y = segment(segment((x * c * d) * a * b, a, false), b, false);
    {
      std::optional<ThreadRefusal> refusal;
      if (rank() == 0) refusal.emplace();
      y.sum().backward();
      if (refusal) {
        EXPECT_GT(refusal->count(), 0);
      }
    }
    for (const at::Tensor& w : {a, b}) expect_gradient(w, 2 * mean_of_ranks());
    first.synchronize();
    second.synchronize();
  }
  EXPECT_GT(first.statistics().late_parts + second.statistics().late_parts, 0);
}

// The first rank ends both reducers in one backward(), the other ranks one after the other. The
// last rank has late parts.
TEST(RefusedThreads, OthersEndOneReducerBeforeTheNext) {
  const at::Tensor a = leaf({2}, at::kDouble), b = leaf({2}, at::kDouble);
  const at::Tensor c = leaf({2}, at::kDouble), d = leaf({2}, at::kDouble);  // come last
  GradientReducerOptions options = alone();
  options.name = "refused.1";
  GradientReducer first({{"c", c}, {"a", a}}, options);
  options.name = "refused.2";
  GradientReducer second({{"d", d}, {"b", b}}, options);
  int refused = 0;
  for (int step = 1; step <= 8; ++step) {
    for (const at::Tensor& w : {a, b, c, d}) w.mutable_grad().reset();
    const bool is_plain = step % 4 == 1;
    const auto loss = [&](const at::Tensor& w, const at::Tensor& last) {
      const at::Tensor x = at::full({2}, rank() + 1.0, at::kDouble) * last;
      if (is_plain || rank() < size() - 1) return (x * w).sum();
      return (segment(x, w, false) * w).sum();
    };
    if (rank() == 0) {
      const ThreadRefusal refusal;
      (loss(a, c) + loss(b, d)).backward();
      refused += refusal.count();
    } else {
      loss(a, c).backward();
      loss(b, d).backward();
    }
    for (const at::Tensor& w : {a, b}) expect_gradient(w, mean_of_ranks() + (is_plain ? 0 : 1));
    for (const at::Tensor& w : {c, d}) expect_gradient(w, mean_of_ranks());
    first.synchronize();
    second.synchronize();
  }
  if (rank() == 0) {
    EXPECT_GT(refused, 0);
  }
}

}  // namespace
}  // namespace horon::refused_threads_test
