// The value of an earlier step is still in .grad. The new gradient arrives in a new tensor
// (autograd adds out of place for create_graph, or a hook of the program replaces .grad), or none
// comes, or the older value is to count as a new one.
#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::older_gradient_test {
namespace {

using namespace testing_support;

double reduced(ReduceOp op, double of_first, double of_others) {
  const double sum = of_first + of_others * (size() - 1);
  return op == ReduceOp::Sum ? sum : sum / size();
}

void backward_with_graph(const at::Tensor& loss) { loss.backward({}, true, /*create_graph=*/true); }

// The loss is linear, so that the gradient has no graph in spite of create_graph.
TEST(OlderGradient, StaysIfAutogradAddsOutOfPlace) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
      SCOPED_TRACE(testing::Message() << to_string(op) << " " << static_cast<int>(wait_in));
      const at::Tensor w = leaf({3});
      GradientReducer reducer({{"w", w}}, alone(op, wait_in));
      weighted(w, rank() == 0 ? 1 : 2).backward();
      reducer.synchronize();
      backward_with_graph(weighted(w, 3));
      reducer.synchronize();
      expect_gradient(w, reduced(op, 1, 2) + reduced(op, 3, 3));
    }
  }
}

TEST(OlderGradient, StaysIfOneRankReachesTheParameter) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    const at::Tensor w = leaf({3}), all = leaf({2});
    GradientReducer reducer({{"w", w}, {"all", all}}, alone(op));
    (weighted(w, 1) + weighted(all, 1)).backward();
    const at::Tensor loss = weighted(all, 1);
    backward_with_graph(rank() == 0 ? loss + weighted(w, 3) : loss);
    expect_gradient(w, reduced(op, 1, 1) + reduced(op, 3, 0));
  }
}

TEST(OlderGradient, StaysIfOneOfNoWeightComes) {
  const at::Tensor w = leaf({3}), all = leaf({2});
  GradientReducer reducer({{"w", w}, {"all", all}}, alone());
  (weighted(w, 1) + weighted(all, 1)).backward();
  reducer.set_weight(rank() == 0 ? 0 : 1);
  const at::Tensor loss = weighted(all, 1);
  backward_with_graph(rank() == 0 ? loss + weighted(w, 3) : loss);
  reducer.synchronize();
  expect_gradient(w, 1);
}

TEST(OlderGradient, StaysIfAHookReplacesIt) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    for (const Compression compression : {Compression::None, Compression::BFloat16}) {
      const at::Tensor w = leaf({3});
      call_after(w, [](const at::Tensor& v) { v.mutable_grad() = v.grad().clamp(-100, 100); });
      GradientReducerOptions options = alone(op);
      options.compression = compression;
      GradientReducer reducer({{"w", w}}, options);
      weighted(w, 1).backward();
      weighted(w, 1).backward();
      reducer.synchronize();
      expect_gradient(w, 2 * reduced(op, 1, 1));
    }
  }
}

// The step adds a second gradient, out of place too.
TEST(OlderGradient, StaysUnderTwoNewOnes) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    const at::Tensor w = leaf({3});
    GradientReducer reducer({{"w", w}}, alone(op));
    weighted(w, 1).backward();
    {
      const auto quiet = reducer.no_sync();
      backward_with_graph(weighted(w, 2));
    }
    backward_with_graph(weighted(w, 4));
    reducer.synchronize();
    expect_gradient(w, reduced(op, 7, 7));
  }
}

// As clipping does, the program writes to the gradient that autograd has made: it is still the sum.
TEST(OlderGradient, StaysIfTheProgramWritesToWhatHasAGraph) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    for (const Compression compression : {Compression::None, Compression::BFloat16}) {
      const at::Tensor w = leaf({3});
      GradientReducerOptions options = alone(op);
      options.compression = compression;
      GradientReducer reducer({{"w", w}}, options);
      weighted(w, 1).backward();
      {
        const auto quiet = reducer.no_sync();
        backward_with_graph((w * w).sum());  // has a graph, so it stays a tensor of its own
      }
      {
        const at::NoGradGuard no_grad;
        w.mutable_grad().mul_(1);
      }
      reducer.synchronize();
      expect_gradient(w, reduced(op, 1, 1) + reduced(op, 2, 2));
    }
  }
}

TEST(OlderGradient, IsGoneOnceTheProgramDropsIt) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    const at::Tensor w = leaf({3});
    GradientReducer reducer({{"w", w}}, alone(op));
    weighted(w, 1).backward();
    w.mutable_grad().reset();
    backward_with_graph(weighted(w, 2));
    expect_gradient(w, reduced(op, 2, 2));
    w.mutable_grad() = at::full({3}, 5.0);  // another tensor, in which this rank's new one is added
    weighted(w, 1).backward();
    expect_gradient(w, reduced(op, 6, 6));
  }
}

// The average over passes would divide it once more.
TEST(OlderGradient, StaysInAnAverageOverPassesWhereNothingComes) {
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    const at::Tensor w = leaf({3});
    GradientReducerOptions options = alone(ReduceOp::Average, wait_in);
    options.backward_passes_per_step = 2;
    options.average_aggregated_gradients = true;
    GradientReducer reducer({{"w", w}}, options);
    for (int pass = 0; pass < 2; ++pass) weighted(w, rank() + 1).backward();
    for (int step = 0; step < 3; ++step) {
      reducer.synchronize();
      expect_gradient(w, mean_of_ranks());
    }
    NoGradient::apply(w).backward();
    expect_gradient(w, mean_of_ranks());
  }
}

// It is kept aside then, where .grad = 0 does not reach it.
TEST(OlderGradient, IsGoneOnceTheProgramZeroesWhatHasComeSince) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    for (const bool with_graph : {false, true}) {
      for (const bool by_optimizer : {false, true}) {
        for (const bool backward_after : {true, false}) {
          const at::Tensor w = leaf({3});
          auto optimizer = sgd({{"w", w}}, alone(op));
          weighted(w, 1).backward();
          {
            const auto quiet = optimizer.no_sync();
            weighted(w, 9).backward({}, true, with_graph);
          }
          if (by_optimizer) {
            optimizer.zero_grad(/*set_to_none=*/false);
          } else {
            w.mutable_grad().zero_();
          }
          if (backward_after) weighted(w, 2).backward();
          optimizer.synchronize();
          expect_gradient(w, backward_after ? reduced(op, 2, 2) : 0);
        }
      }
    }
  }
}

// What has come is zero, and nobody has zeroed it.
TEST(OlderGradient, StaysUnderZeros) {
  const at::Tensor w = leaf({3});
  GradientReducer reducer({{"w", w}}, alone(ReduceOp::Sum));
  weighted(w, 1).backward();
  {
    const auto quiet = reducer.no_sync();
    for (int pass = 0; pass < 2; ++pass) weighted(w, 0).backward();
  }
  weighted(w, 2).backward();
  expect_gradient(w, reduced(ReduceOp::Sum, 3, 3));
}

TEST(OlderGradient, IsGoneOnceTheProgramReplacesItAndWhatHasComeSince) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    const at::Tensor w = leaf({3});
    GradientReducer reducer({{"w", w}}, alone(op));
    weighted(w, 1).backward();
    {
      const auto quiet = reducer.no_sync();
      weighted(w, 3).backward();
    }
    w.mutable_grad() = at::full({3}, rank() == 0 ? 5.0 : 7.0);
    reducer.synchronize();
    expect_gradient(w, reduced(op, 5, 7));
  }
}

// Each rank has made its own of it.
TEST(OlderGradient, CountsAsNewWhereTheProgramSaysSo) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    for (const bool averages : {false, true}) {
      for (const bool before_backward : {true, false}) {
        SCOPED_TRACE(testing::Message() << to_string(op) << averages << before_backward);
        const at::Tensor w = leaf({3});
        GradientReducerOptions options = alone(op);
        options.backward_passes_per_step = 2;
        options.average_aggregated_gradients = averages;
        GradientReducer reducer({{"w", w}}, options);
        for (int pass = 0; pass < 2; ++pass) weighted(w, 1).backward();
        reducer.synchronize();
        const double first = reduced(op, 1, 1) * (averages ? 1 : 2);
        expect_gradient(w, first);
        if (before_backward) {
          w.grad().mul_(rank() == 0 ? 3 : 1);
          reducer.count_gradients_as_new();
        }
        weighted(w, 4).backward();
        if (!before_backward) reducer.count_gradients_as_new();
        weighted(w, 4).backward();
        reducer.synchronize();
        const double again = reduced(op, first * (before_backward ? 3 : 1), first);
        expect_gradient(w, again + reduced(op, 4, 4) * (averages ? 1 : 2));
      }
    }
  }
}

}  // namespace
}  // namespace horon::older_gradient_test
