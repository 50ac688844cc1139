// What autograd and programs do to gradients while they are being reduced, one by one. Nothing
// waits before synchronize() (WaitIn::Step); backward_test.cc has what holds without that.
#include <stdexcept>
#include <string>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::reducer_traps_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

TEST(Reducer, BucketsAreSubmittedInsideBackward) {
  const at::Tensor first = leaf({3}), second = leaf({2, 2});
  int64_t seen = -1;
  const GradientReducer* running = nullptr;
  // Backward reaches `second` first: when `first` has its gradient, the other bucket is under way.
  call_after(first, [&](const at::Tensor&) { seen = running->statistics().submitted_in_backward; });
  GradientReducer reducer({{"first", first}, {"second", second}}, in_flight());
  running = &reducer;
  const at::Tensor hidden = (first * (rank() + 1)).sum();
  (hidden * 1.0 + weighted(second, rank() + 1)).backward();
  EXPECT_EQ(reducer.statistics().submitted_in_backward, 2);
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(reducer.statistics().steps, 0);
  reducer.synchronize();
  expect_gradient(first, mean_of_ranks());
  expect_gradient(second, mean_of_ranks());
}

TEST(Reducer, SecondFiringInFlightIsReducedApart) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    const at::Tensor w = leaf({5});
    GradientReducer reducer({{"w", w}}, in_flight(op));
    for (const double x : {2, 2, 1, 1}) weighted(w, x * (rank() + 1)).backward();
    EXPECT_EQ(reducer.statistics().late_parts, 3);
    reducer.synchronize();
    expect_gradient(w, 6 * (op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks()));
  }
}

TEST(Reducer, LatePartsOfOneRankAlone) {
  const at::Tensor w = leaf({5}), v = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"v", v}}, in_flight());
  for (int step = 0; step < 3; ++step) {
    w.mutable_grad().reset();
    v.mutable_grad().reset();
    (weighted(w, 1) + weighted(v, 1)).backward();
    if (rank() == size() - 1) weighted(w, size()).backward();
    reducer.synchronize();
    expect_gradient(w, 2);
    expect_gradient(v, 1);
  }
}

TEST(Reducer, SeveralPassesBeforeTheBucketIsFullAddInPlace) {
  const at::Tensor a = leaf({3}), b = leaf({2});
  GradientReducer reducer({{"a", a}, {"b", b}}, {.wait_in = WaitIn::Step});
  weighted(a, 1).backward();
  weighted(a, rank()).backward();
  EXPECT_EQ(reducer.statistics().submitted_in_backward, 0);
  weighted(b, 1).backward();
  EXPECT_EQ(reducer.statistics().submitted_in_backward, 1);
  reducer.synchronize();
  EXPECT_EQ(reducer.statistics().late_parts, 0);
  expect_gradient(a, mean_of_ranks());
  expect_gradient(b, 1);
}

TEST(Reducer, NonLinearOpsRefuseASecondFiring) {
  const at::Tensor w = leaf({2});
  GradientReducer reducer({{"weights", w}}, in_flight(ReduceOp::Max));
  weighted(w, rank() + 1).backward();
  EXPECT_THAT(error_of([&] { weighted(w, 1).backward(); }),
              AllOf(StartsWith(to_string(ErrorCode::InvalidArgument)), HasSubstr("\"weights\"")));
  EXPECT_THAT(error_of([&] { reducer.synchronize(); }), HasSubstr("ended with an exception"));
  EXPECT_FALSE(w.grad().defined());  // a step of which a backward() has failed has none
  weighted(w, -rank()).backward();
  reducer.synchronize();
  expect_gradient(w, 0);
}

TEST(Reducer, UndefinedGradientIsNone) {
  const at::Tensor w = leaf({3});
  GradientReducer reducer({{"w", w}}, in_flight());
  NoGradient::apply(w).backward();
  reducer.synchronize();
  EXPECT_FALSE(w.grad().defined());
  // The same where .grad is our view of an older value, on one rank only.
  weighted(w, 2).backward();
  reducer.synchronize();
  (rank() == 0 ? weighted(w, size()) : NoGradient::apply(w)).backward();
  reducer.synchronize();
  expect_gradient(w, 3);
}

TEST(Reducer, GradientPenalty) {
  // loss = |w|^2 c / 2, penalty = |c w|^2 / 2: gradients c w + c^2 w, with w = 1.
  for (const auto& [separate, compression] :
       {std::pair{true, Compression::None}, std::pair{false, Compression::None},
        std::pair{true, Compression::BFloat16}}) {
    const at::ScalarType dtype = compression == Compression::None ? at::kDouble : at::kFloat;
    const at::Tensor w = leaf({4}, dtype), other = leaf({1}, dtype);
    GradientReducerOptions options =
        separate ? in_flight() : GradientReducerOptions{.wait_in = WaitIn::Step};
    options.compression = compression;
    GradientReducer reducer({{"w", w}, {"other", other}}, options);
    const double c = rank() + 1;
    for (int step = 0; step < 3; ++step) {
      w.mutable_grad().reset();
      (w.square().sum() * (c / 2)).backward({}, true, true);
      EXPECT_TRUE(w.grad().requires_grad());
      (w.grad().square().sum() / 2).backward();
      reducer.synchronize();
      double want = 0;
      for (int r = 1; r <= size(); ++r) want += (r + r * r) / static_cast<double>(size());
      expect_gradient(w, want, compression == Compression::None ? 1e-6 : 1e-2);
      EXPECT_FALSE(w.grad().requires_grad());
    }
  }
}

TEST(Reducer, SparseGradientsBecomeDense) {
  const at::Tensor table = leaf({4, 2});
  GradientReducer reducer({{"table", table}}, in_flight());
  const auto loss = [&] {
    const at::Tensor rows = at::full({2}, rank() % 4, at::kLong);
    return at::embedding(table, rows, -1, false, true).sum();
  };
  loss().backward();
  loss().backward();
  reducer.synchronize();
  ASSERT_EQ(table.grad().layout(), at::kStrided);
  at::Tensor want = at::zeros({4, 2});
  for (int r = 0; r < size(); ++r) want[r % 4] += 4.0 / size();
  EXPECT_TRUE(at::allclose(table.grad(), want)) << table.grad();
}

TEST(Reducer, DtypesShapesLayouts) {
  NamedTensors all;
  const auto add = [&all](const at::Tensor& parameter) {
    all.emplace_back("p" + std::to_string(all.size()), parameter);
  };
  const std::vector<std::vector<int64_t>> shapes{{}, {0}, {1}, {3, 0, 2}, {7}, {2, 3, 4, 5}};
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kDouble, at::kBFloat16}) {
    for (const auto& shape : shapes) add(leaf(shape, dtype));
  }
  add(at::ones({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true));
  add(at::ones({3, 4}).t().requires_grad_(true));
  add(at::ones({310, 301}).t().requires_grad_(true));  // large enough for several threads
  add(at::ones({3, 1}).expand({3, 4}).detach().requires_grad_(true));
  GradientReducer reducer(all, {.op = ReduceOp::Sum, .bucket_bytes = 64, .wait_in = WaitIn::Step});
  for (int step = 0; step < 3; ++step) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const auto& [name, w] : all) {
      w.mutable_grad().reset();
      loss = loss + weighted(w, rank() + 1).to(at::kDouble);
    }
    loss.backward();
    reducer.synchronize();
    for (const auto& [name, w] : all) {
      expect_gradient(w, sum_of_ranks());
      EXPECT_EQ(w.grad().scalar_type(), w.scalar_type());
      EXPECT_TRUE(w.grad().strides() == w.strides() || !w.is_non_overlapping_and_dense());
    }
  }
}

TEST(Reducer, TiedParametersCountOnce) {
  const at::Tensor w = leaf({3});
  GradientReducer reducer({{"a.weight", w}, {"b.weight", w}});
  (weighted(w, 1) + weighted(w, rank())).backward();
  reducer.synchronize();
  EXPECT_EQ(reducer.statistics().buckets, 1);
  expect_gradient(w, mean_of_ranks());
}

// Autograd hands the gradient of `imaginary` over as a view whose values are stored negated.
TEST(Reducer, GradientsWithTheNegativeBit) {
  const at::Tensor real = leaf({}), imaginary = leaf({});
  const auto backward = [&] {
    const at::Tensor z = at::complex(real, imaginary).conj();
    at::real(z * at::tensor(c10::complex<float>(3, 4))).backward();
  };
  backward();
  const float expected[] = {real.grad().item<float>(), imaginary.grad().item<float>()};
  EXPECT_EQ(expected[1], 4);
  real.mutable_grad().reset();
  imaginary.mutable_grad().reset();
  GradientReducer reducer({{"real", real}, {"imaginary", imaginary}});
  backward();
  expect_gradient(real, expected[0]);
  expect_gradient(imaginary, expected[1]);
}

TEST(Reducer, ParameterMovesToAnotherDtype) {
  const at::Tensor w = leaf({3}), v = leaf({2});
  GradientReducer reducer({{"weight", w}, {"v", v}}, in_flight());
  (weighted(w, 1) + weighted(v, 1)).backward();
  reducer.synchronize();
  w.set_data(w.data().to(at::kDouble));  // as Module::to() does
  (weighted(w, rank() + 1) + weighted(v, 1).to(at::kDouble)).backward();
  reducer.synchronize();
  EXPECT_EQ(w.grad().scalar_type(), at::kDouble);
  expect_gradient(w, 1 + mean_of_ranks());  // the older value has moved along
  weighted(v, 1).backward();
  w.set_data(w.data().to(at::kFloat));
  EXPECT_THAT(error_of([&] { weighted(w, 1).backward(); }),
              AllOf(StartsWith(to_string(ErrorCode::InvalidArgument)), HasSubstr("\"weight\"")));
  EXPECT_THAT(error_of([&] { reducer.synchronize(); }), HasSubstr("ended with an exception"));
}

// The bytes of a negated view are not its values: LibTorch negates them when it reads them.
TEST(Reducer, GradientThatIsNegatedLazily) {
  const at::Tensor w = leaf({3});
  GradientReducer reducer({{"w", w}}, in_flight());
  w.mutable_grad() = at::full({3}, rank() + 1.0)._neg_view();
  reducer.synchronize();
  expect_gradient(w, -mean_of_ranks());
}

TEST(Reducer, BackwardInInferenceMode) {
  const at::Tensor w = leaf({3});
  GradientReducer reducer({{"w", w}}, in_flight());
  const at::Tensor loss = weighted(w, rank() + 1);
  {
    const c10::InferenceMode inference;
    loss.backward();
    reducer.synchronize();
  }
  expect_gradient(w, mean_of_ranks());
  EXPECT_FALSE(w.grad().is_inference());
  weighted(w, 1).backward();
  reducer.synchronize();
  expect_gradient(w, 1 + mean_of_ranks());
}

TEST(Reducer, ProgramChangesTheTensorOfAGradientAndDropsIt) {
  const at::Tensor w = leaf({3});
  GradientReducer reducer({{"w", w}}, in_flight());
  for (int step = 0; step < 2; ++step) {
    weighted(w, rank() + 1).backward();
    reducer.synchronize();
    expect_gradient(w, mean_of_ranks());
    w.mutable_grad().set_data(at::full({3}, 100));
    w.mutable_grad().reset();
  }
}

TEST(Reducer, ProgramDropsAndReplacesGradients) {
  const at::Tensor w = leaf({3});
  GradientReducer reducer({{"w", w}}, in_flight());
  weighted(w, 100).backward();
  w.mutable_grad().reset();  // dropped in flight, then another pass
  weighted(w, rank() + 1).backward();
  reducer.synchronize();
  expect_gradient(w, mean_of_ranks());

  weighted(w, 100).backward();
  w.mutable_grad() = at::full({3}, rank() + 1.0);  // replaced in flight
  const at::Tensor own = w.grad();
  reducer.synchronize();
  expect_gradient(w, mean_of_ranks());
  EXPECT_EQ(own[0].item<double>(), rank() + 1.0) << "the program's tensor was overwritten";

  w.mutable_grad() = at::full({3}, rank() + 1.0);  // no backward at all
  reducer.synchronize();
  expect_gradient(w, mean_of_ranks());

  w.mutable_grad().reset();
  weighted(w, 100).backward();
  w.mutable_grad().reset();  // dropped for good
  reducer.synchronize();
  EXPECT_FALSE(w.grad().defined());

  weighted(w, 100).backward();
  reducer.synchronize();
  expect_gradient(w, 100);
}

// One rank's share can't be taken out of a sum again: every rank hears of it.
TEST(Reducer, OneRankDropsWhatOthersCountOn) {
  const at::Tensor w = leaf({3}), v = leaf({2});
  GradientReducer reducer({{"weight", w}, {"v", v}}, in_flight());
  for (int step = 0; step < 2; ++step) {
    (weighted(w, 100) + weighted(v, 1)).backward();
    if (rank() == 0) w.mutable_grad().reset();
    if (size() == 1) {
      reducer.synchronize();
    } else {
      EXPECT_THAT(error_of([&] { reducer.synchronize(); }),
                  AllOf(StartsWith(to_string(ErrorCode::InvalidArgument)), HasSubstr("\"weight\""),
                        HasSubstr("zero_grad")));
    }
    EXPECT_FALSE(w.grad().defined());
    expect_gradient(v, 1 + step);
  }
}

// A gradient that one rank can't reduce is an error on all, and the next step works.
TEST(Reducer, OneRankSetsAGradientOfAnotherShape) {
  const at::Tensor w = leaf({3}), v = leaf({2});
  GradientReducer reducer({{"weight", w}, {"v", v}}, in_flight());
  weighted(v, 1).backward();
  w.mutable_grad() = at::ones({rank() == 0 ? 4 : 3});
  EXPECT_THAT(error_of([&] { reducer.synchronize(); }),
              AllOf(HasSubstr("\"weight\""), HasSubstr("shape [4]")));
  expect_gradient(v, 1);
  w.mutable_grad().reset();
  weighted(w, rank() + 1).backward();
  reducer.synchronize();
  expect_gradient(w, mean_of_ranks());
}

TEST(Reducer, ExceptionInsideBackward) {
  const at::Tensor early = leaf({2}), late = leaf({3});
  GradientReducer reducer({{"early", early}, {"late", late}}, in_flight());
  const auto loss = [&](bool fails) {
    at::Tensor hidden = (early * (rank() + 1)).sum();
    if (fails) {
      hidden.register_hook([](const at::Tensor& g) -> at::Tensor {
        throw std::runtime_error("broken");
        return g;
      });
    }
    return hidden * late.sum() / 3;
  };
  EXPECT_THROW(loss(true).backward(), std::runtime_error);
  EXPECT_EQ(reducer.statistics().submitted_in_backward, 1);
  early.mutable_grad().reset();
  late.mutable_grad().reset();
  loss(false).backward();
  reducer.synchronize();
  expect_gradient(early, mean_of_ranks());
  expect_gradient(late, 2 * mean_of_ranks() / 3);
}

// The backward of this runs another backward, as checkpointing does.
struct Recomputed : ::torch::autograd::Function<Recomputed> {
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w) {
    context->save_for_backward({x.detach(), w});
    return x * w.detach();
  }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list gradient) {
    const auto saved = context->get_saved_variables();
    const at::AutoGradMode on(true);
    const at::Tensor x = saved[0].detach().requires_grad_(true);
    (x * saved[1] * gradient[0]).sum().backward();
    return {x.grad(), at::Tensor()};
  }
};

TEST(Reducer, RecomputedSegmentsShareAParameter) {
  const at::Tensor w = at::full({3}, 2.0, at::kDouble).requires_grad_(true);
  GradientReducer reducer({{"w", w}}, in_flight());
  for (int step = 0; step < 2; ++step) {
    w.mutable_grad().reset();
    // c * w^3: gradient 3 c w^2, in three firings.
    const at::Tensor x = w * (rank() + 1.0);
    Recomputed::apply(Recomputed::apply(x, w), w).sum().backward();
    EXPECT_EQ(reducer.statistics().late_parts, 2 * (step + 1));
    reducer.synchronize();
    expect_gradient(w, 12 * mean_of_ranks());
  }
}

TEST(Reducer, AutogradGradLeavesGradientsAlone) {
  const at::Tensor w = leaf({3});
  GradientReducer reducer({{"w", w}}, in_flight(ReduceOp::Sum));
  weighted(w, rank() + 1).backward();
  const auto result = ::torch::autograd::grad({weighted(w, 7)}, {w});
  EXPECT_EQ(result[0][0].item<float>(), 7);
  reducer.synchronize();
  EXPECT_EQ(reducer.statistics().late_parts, 0);
  expect_gradient(w, sum_of_ranks());
}

}  // namespace
}  // namespace horon::reducer_traps_test
