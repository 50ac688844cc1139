// DistributedOptimizer in programs that do more than backward() and step(); its errors; its end.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>

#include <torch/torch.h>

#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::optimizer_traps_test {
namespace {

namespace optim = ::torch::optim;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

struct PairImpl : ::torch::nn::Module {
  PairImpl() {
    a = register_parameter("a", ::torch::ones({3}, at::kDouble));
    b = register_parameter("b", ::torch::ones({2, 2}, at::kDouble));
  }
  at::Tensor a, b;
};
TORCH_MODULE(Pair);

DistributedOptimizer<optim::SGD> sgd(Pair& pair, const GradientReducerOptions& options = alone()) {
  return testing_support::sgd(pair->named_parameters(), options);
}

TEST(Optimizer, BothZeroGradsOfOptimizerAndModule) {
  for (int form = 0; form < 5; ++form) {
    Pair pair;
    auto optimizer = sgd(pair);
    for (int step = 0; step < 3; ++step) {
      if (form == 0) optimizer.zero_grad();
      if (form == 1) optimizer.zero_grad(false);
      if (form == 2) pair->zero_grad();
      if (form == 3) pair->zero_grad(false);
      if (form == 4) static_cast<optim::Optimizer&>(optimizer).zero_grad(false);
      (weighted(pair->a, rank() + 1) + weighted(pair->b, 1)).backward();
      optimizer.step();
    }
    expect_value(pair->a, 1 - 3 * mean_of_ranks());
    expect_value(pair->b, 1 - 3);
    EXPECT_EQ(optimizer.statistics().late_parts, 0) << form;
  }
}

// zero_grad() drops the gradients of a pass that is not meant to count (a generator trained through
// a discriminator) while they are being reduced.
TEST(Optimizer, ZeroGradBetweenTwoPasses) {
  for (const bool set_to_none : {true, false}) {
    Pair pair;
    auto optimizer = sgd(pair);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad(set_to_none);
      (weighted(pair->a, 100) + weighted(pair->b, 100)).backward();
      optimizer.zero_grad(set_to_none);
      weighted(pair->a, rank() + 1).backward();
      optimizer.step();
    }
    expect_value(pair->a, 1 - 2 * mean_of_ranks());
    expect_value(pair->b, 1);
    EXPECT_EQ(pair->b.grad().defined(), !set_to_none);
  }
}

// It also drops the result of the last step, which a Sum keeps aside while a pass adds to it.
TEST(Optimizer, ZeroGradBetweenTwoPassesDropsTheLastStep) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    const double once = op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks();
    Pair pair;
    auto optimizer = sgd(pair, alone(op));
    for (int step = 1; step <= 3; ++step) {
      {
        const auto unsynchronized = optimizer.no_sync();
        weighted(pair->a, 100).backward();
      }
      optimizer.zero_grad(false);
      weighted(pair->a, rank() + 1).backward();
      optimizer.step();
      expect_gradient(pair->a, once);
      expect_value(pair->a, 1 - step * once);
    }
  }
}

TEST(Optimizer, GradientsGoOnWithoutZeroGrad) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    const double once = op == ReduceOp::Sum ? sum_of_ranks() : mean_of_ranks();
    Pair pair;
    auto optimizer = sgd(pair, alone(op));
    for (int step = 1; step <= 4; ++step) {
      at::Tensor loss = weighted(pair->a, rank() + 1);
      if (rank() == 0) loss = loss + weighted(pair->b, size());  // the others bring nothing new
      loss.backward();
      optimizer.step();
      expect_gradient(pair->a, step * once);
      expect_gradient(pair->b, step * (op == ReduceOp::Sum ? size() : 1));
    }
    optimizer.step();  // no rank ran backward(): plain LibTorch steps with what stands there
    expect_gradient(pair->a, 4 * once);
    expect_value(pair->a, 1 - 14 * once);
  }
}

TEST(Optimizer, UnusedParametersDoNotMove) {
  Pair pair;
  DistributedOptimizer optimizer(
      optim::AdamW(pair->parameters(), optim::AdamWOptions(0.1).weight_decay(0.5)),
      pair->named_parameters());
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    if (rank() == 0) weighted(pair->a, size()).backward();
    optimizer.step();
    expect_gradient(pair->a, 1);  // also where no backward() was run
    EXPECT_FALSE(pair->b.grad().defined());
  }
  expect_value(pair->b, 1);
  EXPECT_LT(pair->a[0].item<double>(), 0.9);
  // `b` comes into use on another rank, in a bucket that is already on its way without it.
  optimizer.zero_grad();
  at::Tensor loss = weighted(pair->a, 1);
  if (rank() == size() - 1) loss = loss + weighted(pair->b, size());
  loss.backward();
  expect_gradient(pair->b, 1);
}

TEST(Optimizer, StepsWithoutAnyBackward) {
  Pair pair;
  auto optimizer = sgd(pair);
  for (int step = 0; step < 3; ++step) optimizer.step();
  EXPECT_FALSE(pair->a.grad().defined());
  expect_value(pair->a, 1);
  EXPECT_EQ(optimizer.statistics().steps, 3);
}

TEST(Optimizer, SynchronizeThenStepReducesOnce) {
  Pair pair;
  auto optimizer = sgd(pair, in_flight());
  (weighted(pair->a, rank() + 1) + weighted(pair->b, 1)).backward();
  optimizer.synchronize();
  pair->a.grad().mul_(0.5);
  optimizer.step();
  EXPECT_EQ(optimizer.statistics().steps, 1);
  expect_value(pair->a, 1 - mean_of_ranks() / 2);
  EXPECT_GT(optimizer.exposed_wait_seconds(), 0);

  // A gradient that comes between synchronize() and step() would not be reduced.
  optimizer.zero_grad();
  optimizer.synchronize();
  weighted(pair->b, 1).backward();
  EXPECT_THAT(error_of([&] { optimizer.step(); }), AllOf(StartsWith(kInvalid), HasSubstr("\"b\"")));
  optimizer.synchronize();
  optimizer.step();
  expect_value(pair->b, -1);
}

TEST(Optimizer, WritingInFlightIsFoundOut) {
  Pair pair;
  auto optimizer = sgd(pair, in_flight());
  const auto backward = [&] { (weighted(pair->a, 1) + weighted(pair->b, rank() + 1)).backward(); };
  backward();
  pair->a.grad().mul_(0.5);
  EXPECT_THAT(error_of([&] { optimizer.step(); }), AllOf(StartsWith(kInvalid), HasSubstr("\"a\"")));
  optimizer.zero_grad();
  backward();
  pair->zero_grad(false);
  EXPECT_THAT(error_of([&] { optimizer.step(); }), StartsWith(kInvalid));
  optimizer.zero_grad();
  expect_value(pair->b, 1);
  backward();
  optimizer.step();
  expect_value(pair->b, 1 - mean_of_ranks());
}

TEST(Optimizer, AddedParameterGroup) {
  Pair pair;
  const at::Tensor head = at::ones({5}, at::kDouble).requires_grad_(true);
  auto optimizer = sgd(pair);
  (weighted(pair->a, 1) + weighted(pair->b, 1)).backward();
  optimizer.step();
  optimizer.add_param_group(
      optim::OptimizerParamGroup({head}, std::make_unique<optim::SGDOptions>(1.0)));
  for (int step = 0; step < 2; ++step) {  // the first backward() comes before it is hooked
    optimizer.zero_grad();
    (weighted(pair->a, 1) + weighted(pair->b, 1) + weighted(head, rank() + 1)).backward();
    optimizer.step();
    expect_gradient(head, mean_of_ranks());
  }
  expect_value(head, 1 - 2 * mean_of_ranks());
  EXPECT_EQ(optimizer.statistics().buckets, 3);
}

// The group has as many parameters as before, but not the same ones.
TEST(Optimizer, AParameterInThePlaceOfAnotherOneIsReduced) {
  for (const bool has_names : {true, false}) {
    const at::Tensor a = leaf({2}), b = leaf({3}), c = leaf({3}), d = leaf({3});
    const NamedTensors named = has_names ? NamedTensors{{"a", a}, {"b", b}} : NamedTensors{};
    DistributedOptimizer optimizer(torch::optim::SGD({a, b}, 1.0), named);
    at::Tensor last = b;
    for (const at::Tensor& next : {b, c, d}) {
      optimizer.param_groups()[0].params()[1] = last = next;
      optimizer.zero_grad();
      (weighted(a, rank() + 1) + weighted(last, rank() + 1)).backward();
      optimizer.step();
      EXPECT_TRUE(at::allclose(last, at::full({3}, 1 - mean_of_ranks()))) << last;
    }
  }
}

TEST(Optimizer, FrozenParameterIsUnfrozen) {
  Pair pair;
  pair->b.requires_grad_(false);
  auto optimizer = sgd(pair);
  weighted(pair->a, 1).backward();
  optimizer.step();
  pair->b.requires_grad_(true);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    (weighted(pair->a, 1) + weighted(pair->b, rank() + 1)).backward();
    optimizer.step();
  }
  expect_value(pair->b, 1 - 2 * mean_of_ranks());
}

TEST(Optimizer, OnlyItsOwnParametersAreReduced) {
  Pair pair;
  DistributedOptimizer first(optim::SGD({pair->a}, 1.0), pair->named_parameters());
  DistributedOptimizer second(optim::SGD({pair->b}, 1.0), pair->named_parameters());
  (weighted(pair->a, rank() + 1) + weighted(pair->b, rank() + 1)).backward();
  first.step();
  second.step();
  expect_value(pair->a, 1 - mean_of_ranks());
  expect_value(pair->b, 1 - mean_of_ranks());
  EXPECT_THAT(error_of([&] { sgd(pair); }), AllOf(StartsWith(kInvalid), HasSubstr("\"a\"")));
}

TEST(Optimizer, HooksOfTheProgramStayAndOursGo) {
  Pair pair;
  int called = 0;
  call_after(pair->a, [&](const at::Tensor&) { ++called; });
  {
    auto optimizer = sgd(pair, in_flight());
    // The first register_hook() of LibTorch clears the list that our hook stands in.
    pair->a.register_hook([](const at::Tensor& g) { return g * 2; });
    for (int pass = 0; pass < 3; ++pass) weighted(pair->a, rank() + 1).backward();
    optimizer.synchronize();
    EXPECT_EQ(optimizer.statistics().late_parts, 2);
    expect_gradient(pair->a, 6 * mean_of_ranks());
    EXPECT_EQ(called, 3);
  }
  pair->zero_grad();
  weighted(pair->a, rank() + 1).backward();
  expect_gradient(pair->a, 2 * (rank() + 1));  // not reduced any more
  EXPECT_EQ(called, 4);
}

TEST(Optimizer, DestroyedWhileBucketsAreInFlight) {
  Pair pair;
  for (int round = 0; round < 3; ++round) {
    pair->zero_grad();
    auto optimizer = sgd(pair, in_flight());
    (weighted(pair->a, rank() + 1) + weighted(pair->b, 1)).backward();
  }
  expect_gradient(pair->a, mean_of_ranks());
  auto optimizer = sgd(pair);
  optimizer.zero_grad();
  weighted(pair->a, 1).backward();
  optimizer.step();
  expect_value(pair->a, 0);
}

TEST(Optimizer, WrongParametersAreNamed) {
  const at::Tensor w = leaf({2});
  const auto reduce = [](const char* name, const at::Tensor& tensor) {
    return error_of([&] { GradientReducer reducer({{name, tensor}}); });
  };
  EXPECT_THAT(reduce("result", w * 2), AllOf(StartsWith(kInvalid), HasSubstr("\"result\"")));
  EXPECT_THAT(reduce("nothing", at::Tensor()),
              AllOf(StartsWith(kInvalid), HasSubstr("\"nothing\"")));
  EXPECT_THAT(reduce("complex", leaf({2}, at::kComplexHalf)),
              AllOf(StartsWith(kInvalid), HasSubstr("\"complex\"")));
  EXPECT_THAT(reduce("sparse", at::ones({2}).to_sparse().requires_grad_(true)),
              AllOf(StartsWith(kInvalid), HasSubstr("\"sparse\"")));
  EXPECT_THAT(error_of([&] {
                GradientReducer reducer({{"w", w}}, {.bucket_bytes = 0});
              }),
              AllOf(StartsWith(kInvalid), HasSubstr("bucket_bytes")));
  GradientReducer reducer({{"w", w}, {"counter", at::zeros({}, at::kLong)}});
  weighted(w, 1).backward();
  reducer.synchronize();
}

// Each rank would train the parameter by its own gradients.
TEST(Optimizer, AFrozenParameterWithoutAPlaceIsNamedWhenItIsUnfrozen) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2}), z = at::ones({2}, at::kComplexHalf);
  const at::Tensor eighths = at::ones({2}).to(at::kFloat8_e5m2);
  DistributedOptimizer optimizer(optim::SGD({w, z, eighths}, 1.0),
                                 {{"w", w}, {"z", z}, {"eighths", eighths}});
  const auto step = [&] {
    optimizer.zero_grad();
    (weighted(w, rank() + 1) + at::real(z).sum() * rank()).backward();
    optimizer.step();
  };
  step();
  at::Tensor(z).requires_grad_(true);
  const std::string refused = kInvalid + ": parameter \"z\" has dtype ComplexHalf";
  EXPECT_THAT(error_of(step), StartsWith(refused));
  at::Tensor(z).requires_grad_(false);
  step();
  EXPECT_NEAR(w[0].item<double>(), 1 - 2 * mean_of_ranks(), 1e-6);
  EXPECT_TRUE(at::view_as_real(z).select(1, 0).equal(at::ones({2}, at::kHalf)));
}

TEST(Optimizer, DifferentModelsOnTheRanksAreAMismatch) {
  const at::Tensor w = leaf({rank() == 0 ? 3 : 2}), v = leaf({2});
  GradientReducer reducer({{"w", w}, {"v", v}}, alone());
  const at::Tensor loss = weighted(w, 1) + weighted(v, 1);
  if (size() == 1) {
    loss.backward();
    reducer.synchronize();
    return;
  }
  const std::string error = error_of([&] { loss.backward(); });
  EXPECT_THAT(error, AllOf(StartsWith(kMismatch), HasSubstr("parameter \"w\""), HasSubstr(" [3] "),
                           HasSubstr(" [2] "), HasSubstr("Give all ranks the same")));
  EXPECT_EQ(error_of([&] { reducer.synchronize(); }), error);
  barrier();  // the session goes on
}

TEST(Optimizer, LayoutsThatDifferBetweenRanksAreAMismatch) {
  const auto format = rank() == 0 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const at::Tensor w = at::ones({2, 3, 4, 4}).contiguous(format).requires_grad_(true);
  GradientReducer reducer({{"w", w}});
  if (size() == 1) {
    weighted(w, 1).backward();
  } else {
    EXPECT_THAT(error_of([&] { weighted(w, 1).backward(); }),
                AllOf(StartsWith(kMismatch), HasSubstr("parameter \"w\" of rank 0 differs on rank"),
                      HasSubstr("strides [48, 1, 12, 3], requires_grad = true, at position 0, in "
                                "bucket 0 on rank 0")));
  }
}

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The last test: it ends the session, and starts others.
TEST(OptimizerAndSession, TimelineAndShutdown) {
  shutdown();
  const std::string path = testing::TempDir() + "horon_optimizer_" + std::to_string(getpid());
  init({.set = {{"HORON_TIMELINE", path + "_{rank}.json"}}});
  const std::string own = path + "_" + std::to_string(rank()) + ".json";
  {
    Pair pair;
    auto optimizer = sgd(pair, {.name = "traced", .wait_in = WaitIn::Step});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      (weighted(pair->a, 1) + weighted(pair->b, 1)).backward();
      optimizer.step();
    }
    (weighted(pair->a, 1) + weighted(pair->b, 1)).backward();
    shutdown();
    const std::string trace = content(own);
    for (const char* word : {"\"backward\"", "\"synchronize\"", "traced.bucket.0"}) {
      EXPECT_THAT(trace, HasSubstr(word));
    }
    const std::string closed{to_string(ErrorCode::NotInitialized)};
    EXPECT_THAT(error_of([&] { optimizer.step(); }), StartsWith(closed));
    EXPECT_THAT(error_of([&] { sgd(pair); }), StartsWith(closed));
  }  // destroyed after shutdown
  std::remove(own.c_str());
  init();
  Pair pair;
  auto optimizer = sgd(pair);
  weighted(pair->a, rank() + 1).backward();
  optimizer.step();
  expect_value(pair->a, 1 - mean_of_ranks());
}

}  // namespace
}  // namespace horon::optimizer_traps_test
