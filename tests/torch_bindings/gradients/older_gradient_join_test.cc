// A join() in the middle of a step, where .grad holds a gradient that is left over above the value
// of an earlier step. All ranks hold that value, so it must count once, and not as a gradient.
#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::older_gradient_join_test {
namespace {

using namespace testing_support;

enum class How { Plain, Graph, TwoJoins };

double divisor(ReduceOp op) { return op == ReduceOp::Sum ? 1 : size(); }

// A pass that is not reduced.
void leave_over(GradientReducer& reducer, const at::Tensor& w, double x, How how = How::Plain) {
  const auto quiet = reducer.no_sync();
  const at::Tensor loss = weighted(w, x);
  how == How::Graph ? loss.backward({}, true, /*create_graph=*/true) : loss.backward();
}

// `on_all`: all ranks have a gradient left over, and not the first one alone.
void expect_older_value_to_stay(ReduceOp op, bool on_all, bool backward_after, How how) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone(op));
  weighted(w, 1).backward();
  reducer.synchronize();
  if (on_all || rank() == 0) leave_over(reducer, w, 4, how);
  EXPECT_GE(join(), 0);
  if (how == How::TwoJoins) {
    reducer.set_backward_passes_per_step(1);  // notices the first one
    EXPECT_GE(join(), 0);
  }
  if (backward_after || rank() != 0) weighted(w, 2).backward();
  reducer.synchronize();
  const double fresh = 4.0 * (on_all ? size() : 1) + 2.0 * (size() - (backward_after ? 0 : 1));
  expect_gradient(w, (size() + fresh) / divisor(op));
}

TEST(OlderGradientAndJoin, StaysOneUnderAGradientThatIsLeftOver) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    for (const bool on_all : {false, true}) {
      for (const bool backward_after : {true, false}) {
        for (const How how : {How::Plain, How::Graph, How::TwoJoins}) {
          SCOPED_TRACE(testing::Message()
                       << to_string(op) << on_all << backward_after << static_cast<int>(how));
          expect_older_value_to_stay(op, on_all, backward_after, how);
        }
      }
    }
  }
}

// The gradient above it is dropped, as the others have reduced it in a step that is over.
TEST(OlderGradientAndJoin, StaysUnderAGradientThatWasSubmitted) {
  for (const bool with_graph : {false, true}) {
    SCOPED_TRACE(with_graph);
    const at::Tensor w = leaf({3}, at::kDouble);
    GradientReducer reducer({{"w", w}}, in_flight(ReduceOp::Sum));
    weighted(w, 1).backward();
    reducer.synchronize();
    if (rank() == 0) weighted(w, 4).backward({}, true, with_graph);
    EXPECT_GE(join(), 0);
    weighted(w, 2).backward();
    reducer.synchronize();
    expect_gradient(w, size() + 2.0 * size());
  }
}

TEST(OlderGradientAndJoin, AGradientWithAGraphThatWasSubmittedIsGone) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, in_flight(ReduceOp::Sum));
  if (rank() == 0) (w * w).sum().backward({}, true, /*create_graph=*/true);
  EXPECT_GE(join(), 0);
  weighted(w, 2).backward();
  reducer.synchronize();
  expect_gradient(w, 2.0 * size());
}

// The owner alone holds it.
TEST(OlderGradientAndJoin, StaysOneWhereOwnersAloneHaveGradients) {
  const at::Tensor w = leaf({3}, at::kDouble);
  DistributedOptimizerOptions options;
  options.shard_optimizer_state = options.shard_gradients = true;
  DistributedOptimizer optimizer(::torch::optim::SGD({w}, 0.5), {{"w", w}}, options);
  weighted(w, 1).backward();
  optimizer.synchronize();
  const bool is_owner = w.grad().defined();
  {
    const auto quiet = optimizer.no_sync();
    if (is_owner) weighted(w, 4).backward();
  }
  EXPECT_GE(join(), 0);
  weighted(w, 2).backward();
  optimizer.synchronize();
  EXPECT_EQ(w.grad().defined(), is_owner);
  if (is_owner) expect_gradient(w, 1 + 4.0 / size() + 2);
}

TEST(OlderGradientAndJoin, IsGoneOnceTheProgramZeroesOrDropsOrReplacesIt) {
  for (const int how : {0, 1, 2, 3}) {
    SCOPED_TRACE(how);
    const at::Tensor w = leaf({3}, at::kDouble);
    auto optimizer = sgd({{"w", w}}, alone(ReduceOp::Sum));
    weighted(w, 1).backward();
    optimizer.synchronize();
    {
      const auto quiet = optimizer.no_sync();
      if (rank() == 0) weighted(w, 4).backward();
    }
    EXPECT_GE(join(), 0);
    optimizer.set_backward_passes_per_step(1);  // notices it
    if (how == 0) optimizer.zero_grad(/*set_to_none=*/true);
    if (how == 1) optimizer.zero_grad(/*set_to_none=*/false);
    if (how == 2) w.grad().zero_();
    if (how == 3) w.mutable_grad() = at::zeros({3}, at::kDouble);
    weighted(w, 2).backward();
    optimizer.synchronize();
    expect_gradient(w, 2.0 * size());
  }
}

TEST(OlderGradientAndJoin, CountsAsNewWhereTheProgramSaysSo) {
  for (const How how : {How::Plain, How::Graph}) {
    const at::Tensor w = leaf({3}, at::kDouble);
    GradientReducer reducer({{"w", w}}, alone(ReduceOp::Sum));
    weighted(w, 1).backward();
    reducer.synchronize();
    if (rank() == 0) leave_over(reducer, w, 4, how);
    EXPECT_GE(join(), 0);
    reducer.set_backward_passes_per_step(1);  // notices it
    reducer.count_gradients_as_new();
    weighted(w, 2).backward();
    reducer.synchronize();
    expect_gradient(w, size() * size() + 4 + 2.0 * size());
  }
}

// A dense gradient above a sparse value.
TEST(OlderGradientAndJoin, ASparseOneStaysOne) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    for (const bool backward_after : {true, false}) {
      SCOPED_TRACE(testing::Message() << to_string(op) << backward_after);
      const at::Tensor table = leaf({5, 2}, at::kDouble);
      GradientReducerOptions options = alone(op);
      options.sparse_as_dense = false;
      GradientReducer reducer({{"table", table}}, options);
      const at::Tensor first = at::zeros({1}, at::kLong);
      const auto look_up = [&] { at::embedding(table, first, -1, false, true).sum().backward(); };
      look_up();
      reducer.synchronize();
      if (rank() == 0) leave_over(reducer, table, 4);
      EXPECT_GE(join(), 0);
      if (backward_after) look_up();
      reducer.synchronize();
      at::Tensor want = at::full({5, 2}, 4 / divisor(op), at::kDouble);
      want[0] += (backward_after ? 2.0 : 1.0) * size() / divisor(op);
      EXPECT_TRUE(at::allclose(table.grad().to_dense(), want)) << table.grad() << want;
    }
  }
}

// In a step that the join() has ended, it had come after synchronize().
TEST(OlderGradientAndJoin, AGradientThatIsLeftOverIsNoChangeInTheNextStep) {
  const at::Tensor w = leaf({3}, at::kDouble);
  auto optimizer = sgd({{"w", w}}, in_flight());
  weighted(w, 1).backward();
  optimizer.synchronize();
  w.mutable_grad().reset();
  {
    const auto quiet = optimizer.no_sync();
    if (rank() == 0) weighted(w, 4).backward();
  }
  EXPECT_GE(join(), 0);
  if (rank() != 0) weighted(w, 2).backward();
  EXPECT_EQ(error_of([&] { optimizer.step(); }), "no error");
  expect_value(w, 1 - (4 + 2.0 * (size() - 1)) / size());
}

}  // namespace
}  // namespace horon::older_gradient_join_test
