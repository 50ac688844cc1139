// When backward() returns, gradients are reduced, whatever runs inside it.
#include <stdexcept>
#include <thread>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::backward_ends_test {
namespace {

namespace autograd = ::torch::autograd;
using namespace testing_support;

TEST(BackwardEnds, RecomputedSegments) {
  for (const bool shown : {true, false}) {
    for (const bool head : {true, false}) {
      const at::Tensor a = leaf({3}, at::kDouble), b = leaf({3}, at::kDouble);
      const at::Tensor h = leaf({3}, at::kDouble);
      GradientReducer reducer({{"a", a}, {"b", b}, {"h", h}}, alone());
      for (int step = 1; step <= 4; ++step) {
        const int64_t before = reducer.statistics().steps;
        for (const at::Tensor& w : {a, b, h}) w.mutable_grad().reset();
        const at::Tensor x = at::full({3}, rank() + 1.0, at::kDouble).requires_grad_(true);
        // The input of the first segment is a result, so the node of the leaf `x` comes last.
        at::Tensor y = segment(segment(x * 1, a, shown), b, shown);
        if (head) y = y * h;
        y.sum().backward();
        SCOPED_TRACE(testing::Message() << "shown " << shown << " head " << head << " " << step);
        expect_gradient(a, mean_of_ranks());
        expect_gradient(b, mean_of_ranks());
        if (head) expect_gradient(h, mean_of_ranks());
        reducer.synchronize();
        EXPECT_EQ(reducer.statistics().steps - before, 1);
        EXPECT_EQ(reducer.statistics().late_parts, 0);
      }
    }
  }
}

// One segment is inside another, and one parameter is in both: one or two late parts, and one
// round.
TEST(BackwardEnds, SharedParameterInNestedSegments) {
  const at::Tensor w = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  for (int step = 1; step <= 3; ++step) {
    w.mutable_grad().reset();
    const at::Tensor x = at::full({2}, rank() + 1.0, at::kDouble).requires_grad_(true);
    (segment(segment(x * 1, w, false), w, false) * w).sum().backward();
    expect_gradient(w, 3 * mean_of_ranks());
    reducer.synchronize();
    EXPECT_EQ(reducer.statistics().steps, step);
  }
}

// In a network of segments alone, nothing piles up on the nodes that live for long.
TEST(BackwardEnds, SegmentsWhoseInputIsALeafThatStays) {
  const at::Tensor w = leaf({2}, at::kDouble), x = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  const auto accumulator = autograd::impl::grad_accumulator(x);
  for (int step = 1; step <= 5; ++step) {
    w.mutable_grad().reset();
    segment(x, w, false).sum().backward();
    expect_gradient(w, 1);
    reducer.synchronize();
  }
  EXPECT_EQ(reducer.statistics().steps, 5);
  EXPECT_TRUE(accumulator->pre_hooks().empty());
}

// The pass of the other thread ends right behind the inner pass of this thread's one, which has
// called no hook of the reducer otherwise. The last pass to end reduces, and finds all gradients.
TEST(BackwardEnds, APassOfAnotherThreadEndsBehindAnInnerPass) {
  const at::Tensor a = leaf({2}, at::kDouble), b = leaf({2}, at::kDouble);
  const at::Tensor last = leaf({2}, at::kDouble);
  GradientReducer reducer({{"a", a}, {"b", b}, {"last", last}}, alone());
  for (int step = 1; step <= 3; ++step) {
    for (const at::Tensor& w : {a, b, last}) w.mutable_grad().reset();
    const at::Tensor hidden = last * (rank() + 1.0);
    hidden.register_hook([&](const at::Tensor& gradient) {
      std::jthread([&] { weighted(b, rank() + 1).backward(); });
      return gradient;
    });
    segment(hidden, a, /*shown=*/false).sum().backward();
    for (const at::Tensor& w : {a, b, last}) expect_gradient(w, mean_of_ranks());
    reducer.synchronize();
    EXPECT_EQ(reducer.statistics().steps, step);
  }
}

TEST(BackwardEnds, GradOfAutogradIsLeftAlone) {
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    const at::Tensor w = leaf({3}, at::kDouble), v = leaf({2}, at::kDouble);
    GradientReducer reducer({{"w", w}, {"v", v}}, alone(ReduceOp::Sum, wait_in));
    (weighted(w, 2.0 / size()) + weighted(v, 1)).backward();
    reducer.synchronize();
    expect_gradient(w, 2);
    for (int i = 0; i < 2; ++i) {
      const auto grads = autograd::grad({weighted(w, 5) + weighted(v, 1)}, {w});
      expect_value(grads[0], 5);
      expect_gradient(w, 2);
    }
    // Between a backward() and the step, and of some parameters only.
    weighted(v, 1).backward();
    (void)autograd::grad({weighted(w, 5)}, {w});
    weighted(w, rank()).backward({}, /*retain_graph=*/false, /*create_graph=*/false, {{w}});
    (void)autograd::grad({weighted(w, 5)}, {w});
    reducer.synchronize();
    expect_gradient(w, 2 + sum_of_ranks() - size());
    expect_gradient(v, 2 * size());
  }
}

TEST(BackwardEnds, ExceptionsLeaveTheNextOneRight) {
  const at::Tensor a = leaf({2}, at::kDouble), b = leaf({3}, at::kDouble);
  GradientReducer reducer({{"a", a}, {"b", b}}, alone());
  const auto loss = [&](bool fails) {
    at::Tensor hidden = (a * (rank() + 1)).sum();
    if (fails) {
      hidden.register_hook([](const at::Tensor& g) -> at::Tensor {
        throw std::runtime_error("broken");
        return g;
      });
    }
    return hidden + weighted(b, rank() + 1);
  };
  for (int round = 0; round < 2; ++round) {
    EXPECT_THROW(loss(true).backward(), std::runtime_error);
    a.mutable_grad().reset();
    b.mutable_grad().reset();
    loss(false).backward();
    expect_gradient(a, mean_of_ranks());
    expect_gradient(b, mean_of_ranks());
    reducer.synchronize();
  }
}

// A callback that the program has queued throws when the buckets are on their way already.
TEST(BackwardEnds, AnotherCallbackThrows) {
  const at::Tensor w = leaf({3}, at::kDouble);
  bool fails = true;
  call_after(w, [&](const at::Tensor&) {
    if (!fails) return;
    autograd::Engine::get_default_engine().queue_callback(
        [] { autograd::Engine::get_default_engine().queue_callback([] { throw 5; }); });
  });
  GradientReducer reducer({{"w", w}}, alone());
  EXPECT_THROW(weighted(w, rank() + 1).backward(), int);
  fails = false;
  w.mutable_grad().reset();
  weighted(w, rank() + 1).backward();
  expect_gradient(w, mean_of_ranks());
  reducer.synchronize();
}

// The callback throws after the end of one reducer and before the end of all. The next backward()
// must not take over what is left unended.
TEST(BackwardEnds, ACallbackThatThrowsLeavesNothingForTheNextBackward) {
  const at::Tensor a = leaf({3}, at::kDouble), b = leaf({3}, at::kDouble);
  bool fails = true;
  call_after(a, [&](const at::Tensor&) {
    if (fails) autograd::Engine::get_default_engine().queue_callback([] { throw 5; });
  });
  GradientReducerOptions options = alone();
  options.name = "thrown.1";
  GradientReducer first({{"a", a}}, options);
  options.name = "thrown.2";
  GradientReducer second({{"b", b}}, options);
  EXPECT_THROW(weighted(a, rank() + 1).backward(), int);
  fails = false;
  first.synchronize();
  weighted(b, rank() + 1).backward();
  expect_gradient(b, mean_of_ranks());
  second.synchronize();
  // With a late part, on which the ranks must agree.
  a.mutable_grad().reset();
  fails = true;
  EXPECT_THROW(weighted(a, rank() + 1).backward(), int);
  fails = false;
  first.synchronize();
  a.mutable_grad().reset();
  const at::Tensor x = at::full({3}, rank() + 1.0, at::kDouble).requires_grad_(true);
  (segment(x * 1, a, false) * a).sum().backward();
  expect_gradient(a, 2 * mean_of_ranks());
  first.synchronize();
}

// Two reducers whose hooks are called in other orders on the ranks, and that have late parts.
TEST(BackwardEnds, ReducersEndInOneOrder) {
  const at::Tensor a = leaf({2}, at::kDouble), b = leaf({2}, at::kDouble);
  const at::Tensor c = leaf({2}, at::kDouble), d = leaf({2}, at::kDouble);  // come last
  GradientReducer first({{"c", c}, {"a", a}}, alone()), second({{"d", d}, {"b", b}}, alone());
  for (int step = 1; step <= 3; ++step) {
    for (const at::Tensor& w : {a, b, c, d}) w.mutable_grad().reset();
    const at::Tensor x = at::full({2}, rank() + 1.0, at::kDouble).requires_grad_(true);
    const bool swapped = (rank() + step) % 2 == 0;
    const at::Tensor& near = swapped ? a : b;
    const at::Tensor& far = swapped ? b : a;
    at::Tensor y = segment(segment((x * c * d) * far * near, far, false), near, false);
    y.sum().backward();
    expect_gradient(a, 2 * mean_of_ranks());
    expect_gradient(b, 2 * mean_of_ranks());
    first.synchronize();
    second.synchronize();
  }
  if (size() > 1) {
    EXPECT_GT(first.statistics().late_parts + second.statistics().late_parts, 0);
  }
}

// On some ranks two reducers end in one backward(), on the other ranks in two. Each has a late part
// on the last rank. Neither may wait for the other.
TEST(BackwardEnds, ReducersThatEndTogetherOnSomeRanksOnly) {
  const at::Tensor a = leaf({2}, at::kDouble), b = leaf({2}, at::kDouble);
  const at::Tensor c = leaf({2}, at::kDouble), d = leaf({2}, at::kDouble);  // come last
  GradientReducerOptions options = alone();
  options.name = "together.1";
  GradientReducer first({{"c", c}, {"a", a}}, options);
  options.name = "together.2";
  GradientReducer second({{"d", d}, {"b", b}}, options);
  for (int step = 1; step <= 8; ++step) {
    for (const at::Tensor& w : {a, b, c, d}) w.mutable_grad().reset();
    const bool is_plain = step % 4 == 1;
    const auto loss = [&](const at::Tensor& w, const at::Tensor& last) {
      const at::Tensor x = at::full({2}, rank() + 1.0, at::kDouble) * last;
      if (is_plain || rank() < size() - 1) return (x * w).sum();
      return (segment(x, w, false) * w).sum();
    };
    if (rank() % 2 == 0) {
      (loss(a, c) + loss(b, d)).backward();
    } else if (step % 2 == 0) {
      loss(a, c).backward();
      loss(b, d).backward();
    } else {
      loss(b, d).backward();
      loss(a, c).backward();
    }
    for (const at::Tensor& w : {a, b}) expect_gradient(w, mean_of_ranks() + (is_plain ? 0 : 1));
    for (const at::Tensor& w : {c, d}) expect_gradient(w, mean_of_ranks());
    first.synchronize();
    second.synchronize();
  }
}

}  // namespace
}  // namespace horon::backward_ends_test
