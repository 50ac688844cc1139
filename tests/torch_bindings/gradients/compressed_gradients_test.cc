// Gradients that travel in 16 bits: the hooks scale and round them in the pass that takes them to
// their bucket, and the results have the bits of a compressed allreduce.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::compressed_gradients_test {
namespace {

using namespace testing_support;

// Bits, not values: NaN equals NaN, 0 is not -0.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() &&
         at::equal(a.contiguous().view(at::kInt), b.contiguous().view(at::kInt));
}

// The values of this rank, among them subnormal and infinite ones, and some that become so in 16
// bits.
at::Tensor random_values(at::IntArrayRef shape, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed * 100 + rank()));
  at::Tensor values = at::randn(shape) * at::pow(2.0, at::randint(-30, 20, shape));
  at::Tensor flat = values.view({-1});
  if (flat.numel() > 8) {
    flat[1] = -0.0;
    flat[2] = 1e-40;
    flat[3] = 65519;
    flat[4] = kNaN;
  }
  return values;
}

struct Case {
  Compression type;
  ReduceOp op;
  double predivide;
  bool check_finite;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Compression type : {Compression::Float16, Compression::BFloat16}) {
    for (const bool check : {false, true}) {
      for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum, ReduceOp::Max}) {
        all.push_back({type, op, 1, check});
      }
      all.push_back({type, ReduceOp::Average, 3, check});
    }
  }
  return all;
}

TEST(CompressedGradients, HaveTheBitsOfACompressedAllreduce) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(std::string(to_string(one.type)) + " " + std::string(to_string(one.op)));
    // Small and strided ones, a scalar, one without elements, and one for several threads.
    std::vector<at::Tensor> leaves = {
        leaf({17}), leaf({}), leaf({0, 3}), leaf({300, 1000}),
        at::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true)};
    NamedTensors named;
    for (size_t i = 0; i < leaves.size(); ++i)
      named.emplace_back("p" + std::to_string(i), leaves[i]);
    GradientReducer reducer(named, {.op = one.op,
                                    .bucket_bytes = 1 << 10,
                                    .compression = one.type,
                                    .gradient_predivide_factor = one.predivide,
                                    .check_finite = one.check_finite});
    for (int step = 0; step < 5; ++step) {
      std::vector<at::Tensor> want;
      at::Tensor loss = at::zeros({});
      for (size_t i = 0; i < leaves.size(); ++i) {
        at::Tensor factor = random_values(leaves[i].sizes(), step * 10 + static_cast<int64_t>(i));
        if (one.check_finite) factor = factor.clamp(-9, 9).nan_to_num(1);
        want.push_back(allreduce(factor, {.op = one.op,
                                          .prescale = 1 / one.predivide,
                                          .postscale = one.predivide,
                                          .compression = one.type}));
        loss = loss + (leaves[i] * factor).sum();
      }
      loss.backward();
      for (size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_TRUE(same_bits(leaves[i].grad(), want[i])) << "p" << i << " in step " << step;
        leaves[i].mutable_grad().reset();
      }
    }
    EXPECT_EQ(reducer.statistics().late_parts, 0);
  }
}

// Flush-to-zero, as many programs choose it, concerns this thread only.
TEST(CompressedGradients, AreRoundedAlikeWhateverTheProgramsFloatMode) {
  const at::Tensor w = leaf({100});
  GradientReducer reducer({{"w", w}}, {.compression = Compression::BFloat16});
  const at::Tensor tiny = at::full({100}, 1e-39);
  const bool flushes = at::globalContext().setFlushDenormal(rank() == 0);
  w.mutable_grad() = at::Tensor();
  w.register_hook([&](const at::Tensor&) { return tiny; });
  weighted(w, 1).backward();
  if (flushes) at::globalContext().setFlushDenormal(false);
  const at::Tensor rounded = tiny.to(at::kBFloat16).to(at::kFloat);
  EXPECT_TRUE(same_bits(w.grad(), rounded)) << w.grad()[0];
}

using Program = std::function<void(const at::Tensor& w, const at::Tensor& v, GradientReducer&)>;

std::vector<at::Tensor> results(const Program& program, GradientReducerOptions options,
                                bool check_finite) {
  const at::Tensor w = leaf({50}), v = leaf({9});
  options.compression = Compression::BFloat16;
  options.check_finite = check_finite;
  GradientReducer reducer({{"w", w}, {"v", v}}, options);
  std::vector<at::Tensor> all;
  for (int step = 0; step < 4; ++step) {
    program(w, v, reducer);
    reducer.synchronize();
    for (const at::Tensor& each : {w, v}) {
      all.push_back(each.grad().defined() ? each.grad().clone() : at::zeros({}));
      if (step > 0) each.mutable_grad().reset();  // after step 0 the next one adds to it
    }
  }
  return all;
}

// With check_finite gradients are first looked at, and narrowed when their bucket is sent.
void expect_alike(const Program& program, GradientReducerOptions options = {}) {
  const std::vector<at::Tensor> in_hooks = results(program, options, false);
  const std::vector<at::Tensor> when_sent = results(program, options, true);
  ASSERT_EQ(in_hooks.size(), when_sent.size());
  for (size_t i = 0; i < in_hooks.size(); ++i) {
    EXPECT_TRUE(same_bits(in_hooks[i], when_sent[i]))
        << i << ": " << in_hooks[i] << " and " << when_sent[i];
  }
}

double fine(int of) { return of + rank() + 1.0 / 4099; }

// Both parameters are in one bucket. It waits for the second, while more comes for the first.
TEST(CompressedGradients, SeveralInOneRoundAddUpBeforeTheyAreRounded) {
  expect_alike(
      [](const at::Tensor& w, const at::Tensor& v, GradientReducer&) {
        weighted(w, fine(1)).backward();
        weighted(w, fine(2)).backward();
        weighted(v, fine(3)).backward();
      },
      {.wait_in = WaitIn::Step});
}

TEST(CompressedGradients, APassThatIsNotReducedCounts) {
  expect_alike([](const at::Tensor& w, const at::Tensor& v, GradientReducer& reducer) {
    {
      const auto quiet = reducer.no_sync();
      (weighted(w, fine(1)) + weighted(v, fine(5))).backward();
    }
    weighted(w, fine(2)).backward();
  });
}

TEST(CompressedGradients, WhatTheProgramMakesOfThemBeforeTheyAreSentCounts) {
  expect_alike(
      [](const at::Tensor& w, const at::Tensor& v, GradientReducer&) {
        weighted(w, fine(1)).backward();
        w.mutable_grad().mul_(1.5);
        if (rank() == 0) w.mutable_grad() = at::full({50}, fine(7));
        weighted(v, fine(2)).backward();
      },
      {.wait_in = WaitIn::Step});
}

TEST(CompressedGradients, ARankWithoutThemTakesPart) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Max}) {
    expect_alike(
        [](const at::Tensor& w, const at::Tensor& v, GradientReducer&) {
          at::Tensor loss = weighted(w, fine(1));
          if (rank() == 0) loss = loss + weighted(v, fine(2));
          loss.backward();
        },
        {.op = op});
  }
}

TEST(CompressedGradients, WeightsCount) {
  expect_alike([](const at::Tensor& w, const at::Tensor& v, GradientReducer& reducer) {
    reducer.set_weight(rank() + 3);
    (weighted(w, fine(1)) + weighted(v, fine(2))).backward();
  });
}

TEST(CompressedGradients, OnesWithAGraphStayWhatTheyAre) {
  expect_alike([](const at::Tensor& w, const at::Tensor& v, GradientReducer&) {
    const at::Tensor loss = (w * w * fine(1)).sum() + weighted(v, fine(2));
    loss.backward({}, true, true);
  });
}

// The program may change the tensor that views the bucket; its new values are not the gradient.
TEST(CompressedGradients, ATensorThatTheProgramHasChangedIsNotTakenForTheBucket) {
  expect_alike([](const at::Tensor& w, const at::Tensor& v, GradientReducer& reducer) {
    (weighted(w, fine(1)) + weighted(v, fine(2))).backward();
    reducer.synchronize();
    w.mutable_grad().set_data(at::full({50}, 100.0));
    for (const at::Tensor& each : {w, v}) each.mutable_grad().reset();
    (weighted(w, fine(3)) + weighted(v, fine(4))).backward();
  });
}

TEST(CompressedGradients, ComeFromABackwardInInferenceMode) {
  expect_alike([](const at::Tensor& w, const at::Tensor& v, GradientReducer& reducer) {
    const at::Tensor loss = weighted(w, fine(1)) + weighted(v, fine(2));
    const c10::InferenceMode inference;
    loss.backward();
    reducer.synchronize();
  });
}

// before_bucket() may be called when gradients are on their way already; it sees these too.
TEST(CompressedGradients, AFunctionThatSeesTheBucketSeesWhatCameBeforeIt) {
  const auto halve = [](const BucketView& bucket) { bucket.flat.mul_(0.5); };
  expect_alike(
      [&](const at::Tensor& w, const at::Tensor& v, GradientReducer& reducer) {
        reducer.before_bucket(nullptr);
        weighted(w, fine(1)).backward();
        reducer.before_bucket(halve);
        weighted(v, fine(2)).backward();
      },
      {.wait_in = WaitIn::Step});
}

}  // namespace
}  // namespace horon::compressed_gradients_test
