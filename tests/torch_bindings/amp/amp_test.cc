// Loss scaling on N ranks, which all decide alike without a collective of their own; and training
// in mixed precision.
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ops/_amp_update_scale.h>
#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/amp/autocast.h"
#include "horon/torch_bindings/amp/grad_scaler.h"

namespace horon::amp_test {
namespace {

namespace optim = ::torch::optim;
using namespace amp;
using namespace testing_support;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool anywhere(bool mine) {
  const at::Tensor flag = at::full({1}, mine ? 1 : 0, at::kByte);
  return allreduce(flag, {.name = "anywhere", .op = ReduceOp::Max}).item<int>() == 1;
}
bool everywhere(bool mine) { return !anywhere(!mine); }

// The rule of growth against LibTorch's own, with infinities at all distances from each other.
TEST(GradScaler, ScaleGrowsAndShrinksAsLibTorchs) {
  GradScaler scaler(
      {.init_scale = 3, .growth_factor = 1.7, .backoff_factor = 0.4, .growth_interval = 4});
  at::Tensor scale = at::full({}, 3, at::kFloat), tracker = at::full({}, 0, at::kInt);
  const at::Tensor w = leaf({1});
  optim::SGD optimizer({w}, 0.0);
  for (int step = 0; step < 300; ++step) {
    const bool bad = step % 97 > 60 ? step % 2 == 0 : step % 23 == 0;
    w.mutable_grad() = at::full({1}, bad ? kInfinity : 1, at::kFloat);
    EXPECT_EQ(scaler.step(optimizer), !bad);
    scaler.update();
    const at::Tensor found = at::full({}, bad ? 1 : 0, at::kFloat);
    at::_amp_update_scale_(scale, tracker, found, 1.7, 0.4, 4);
    ASSERT_EQ(scaler.get_scale(), scale.item<double>()) << step;
    ASSERT_EQ(scaler.growth_tracker(), tracker.item<int64_t>()) << step;
  }
  // It stays a number, and a positive one.
  GradScaler largest({.init_scale = 3e38, .growth_interval = 1});
  GradScaler least({.init_scale = 1e-37});
  for (int step = 0; step < 9; ++step) {
    for (const bool bad : {false, true}) {
      GradScaler& one = bad ? least : largest;
      w.mutable_grad() = at::full({1}, bad ? std::nan("") : 1, at::kFloat);
      one.step(optimizer);
      one.update();
    }
  }
  EXPECT_EQ(largest.get_scale(), static_cast<double>(3e38F));
  EXPECT_EQ(least.get_scale(), static_cast<double>(std::numeric_limits<float>::min()));
}

// One rank's infinity leaves the step out on all, the scale shrinks on all, and grows on all.
template <class Optimizer>
void expect_all_skip_together(Optimizer& optimizer, const at::Tensor& w, bool unscaled_first) {
  GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  const auto train_step = [&](double mine) {
    optimizer.zero_grad();
    scaler.scale(weighted(w, mine)).backward();
    if (unscaled_first) scaler.unscale_(optimizer);
    const bool made = scaler.step(optimizer);
    scaler.update();
    EXPECT_EQ(everywhere(made), anywhere(made));
    return made;
  };
  EXPECT_TRUE(train_step(0.25));
  EXPECT_TRUE(w.eq(0.75).all().item<bool>()) << w;  // SGD of lr 1
  expect_gradient(w, 0.25);
  EXPECT_EQ(scaler.get_scale(), 1024);
  for (const double bad : {kInfinity, std::nan(""), 1e38}) {  // the last is infinite when scaled
    const double before = scaler.get_scale();
    EXPECT_FALSE(train_step(rank() == size() - 1 ? bad : 0.25));
    EXPECT_EQ(scaler.get_scale(), before / 2);
    EXPECT_TRUE(w.eq(0.75).all().item<bool>()) << w;
  }
  for (const double scale : {128.0, 256.0, 256.0, 512.0}) {
    EXPECT_TRUE(train_step(0.125));
    EXPECT_EQ(scaler.get_scale(), scale);
  }
  EXPECT_TRUE(w.eq(0.25).all().item<bool>()) << w;
}

TEST(GradScaler, AnInfinityOfOneRankLeavesTheStepOutOnAll) {
  for (const bool unscaled_first : {false, true}) {
    for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
      for (const FusedStep fused : {FusedStep::WhereBitEqual, FusedStep::Never}) {
        const at::Tensor w = leaf({40});
        DistributedOptimizer optimizer(optim::SGD({w}, 1.0), {{"w", w}},
                                       {.wait_in = wait_in, .fused_step = fused});
        expect_all_skip_together(optimizer, w, unscaled_first);
        EXPECT_EQ(optimizer.grad_scale(), 1);
        EXPECT_FALSE(optimizer.skip_nonfinite());
      }
    }
    const at::Tensor v = leaf({40}), u = leaf({40});
    DistributedOptimizer held(std::make_unique<optim::SGD>(std::vector{v}, 1.0), {{"v", v}});
    expect_all_skip_together(held, v, unscaled_first);
    // A plain optimizer, with gradients that are reduced when backward() returns.
    optim::SGD plain({u}, 1.0);
    const GradientReducer reducer({{"u", u}});
    expect_all_skip_together(plain, u, unscaled_first);
  }
}

// The step that is left out ends as others do: its weight, its rounds and its passes are over.
TEST(GradScaler, TheStepAfterOneThatWasLeftOutBeginsAnew) {
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    const at::Tensor w = leaf({3});
    DistributedOptimizer optimizer(optim::SGD({w}, 1.0), {{"w", w}}, {.wait_in = wait_in});
    GradScaler scaler({.init_scale = 4});
    const int last = size() - 1;
    const auto train_step = [&](std::optional<double> mine) {
      optimizer.zero_grad();
      if (mine) scaler.scale(weighted(w, *mine)).backward();
      scaler.unscale_(optimizer);
      const bool made = scaler.step(optimizer);
      scaler.update();
      return made;
    };
    const auto leave_out = [&] { EXPECT_FALSE(train_step(rank() == last ? kInfinity : 1)); };
    optimizer.set_weight(rank() + 1);
    leave_out();
    EXPECT_TRUE(optimizer.step_skipped());
    EXPECT_TRUE(train_step(rank() + 1));
    expect_gradient(w, mean_of_ranks());  // without a weight
    leave_out();
    EXPECT_TRUE(train_step(rank() == last && last > 0 ? std::nullopt : std::optional(1.0)));
    leave_out();
    optimizer.set_backward_passes_per_step(2);
    weighted(w, 1).backward();
    EXPECT_THAT(error_of([&] { optimizer.step(); }),
                HasSubstr(" called step() before any parameter had"));
  }
}

// Through the base class, as a function of the program would.
TEST(GradScaler, StateOfTheOptimizerStaysWhereAStepIsLeftOut) {
  const at::Tensor w = leaf({4});
  DistributedOptimizer optimizer(optim::Adam({w}, 0.1), {{"w", w}},
                                 {.fused_step = FusedStep::WherePossible});
  optim::Optimizer& base = optimizer;
  GradScaler scaler({.init_scale = 4});
  int64_t made = 0;
  for (const double mine : {1.0, kInfinity, 1.0, 1.0}) {
    optimizer.zero_grad();
    scaler.scale(weighted(w, rank() == 0 ? mine : 1)).backward();
    made += scaler.step(base) ? 1 : 0;
    scaler.update();
    const auto& state = *optimizer.state().at(w.unsafeGetTensorImpl());
    EXPECT_EQ(static_cast<const optim::AdamParamState&>(state).step(), made);
  }
  EXPECT_EQ(made, 3);
  EXPECT_TRUE(w.isfinite().all().item<bool>());
}

// After the reduction all ranks see the same, whatever it is. Sums and products keep what is not
// finite; Min and Max may drop an infinity, for all.
TEST(GradScaler, AllRanksFindTheSameInEveryReductionAndCompression) {
  const at::Tensor odd_nan = at::full({8}, 0x7fffffff, at::kInt).view(at::kFloat);
  const std::vector<at::Tensor> bad{at::full({8}, kInfinity), at::full({8}, -kInfinity),
                                    at::full({8}, std::nan("")), odd_nan};
  for (const ReduceOp op :
       {ReduceOp::Average, ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max}) {
    for (const Compression compression :
         {Compression::None, Compression::Float16, Compression::BFloat16}) {
      const at::Tensor w = leaf({8});
      DistributedOptimizer optimizer(optim::SGD({w}, 0.0), {{"w", w}},
                                     {.op = op, .compression = compression});
      GradScaler scaler({.init_scale = 1});
      const auto found = [&](const at::Tensor& mine, bool unscaled_first) {
        optimizer.zero_grad();
        scaler.scale((w * mine).sum()).backward();
        if (unscaled_first) scaler.unscale_(optimizer);
        const bool skipped = !scaler.step(optimizer);
        scaler.update(1);
        EXPECT_EQ(anywhere(skipped), everywhere(skipped));
        return skipped;
      };
      const bool keeps = op != ReduceOp::Min && op != ReduceOp::Max;
      for (const at::Tensor& values : bad) {
        for (const bool first : {false, true}) {
          const bool skipped = found(rank() == 0 ? values : at::ones({8}), first);
          if (keeps || values.isnan().all().item<bool>()) {
            EXPECT_TRUE(skipped) << to_string(op) << " of " << values;
          }
        }
      }
      EXPECT_FALSE(found(at::ones({8}), false));
      // Finite on every rank, and not in what travels, or in the sum. (One rank sends nothing.)
      if (op != ReduceOp::Sum || size() == 1) continue;
      EXPECT_EQ(found(at::full({8}, 7e4), false), compression == Compression::Float16);
      EXPECT_TRUE(found(at::full({8}, 3e38), true));
    }
  }
}

TEST(GradScaler, OfWeightsAndSparseGradients) {
  const at::Tensor w = leaf({4}), table = leaf({size() + 1, 2});
  DistributedOptimizer optimizer(optim::SGD({w, table}, 1.0), {{"w", w}, {"table", table}},
                                 {.sparse_as_dense = false});
  GradScaler scaler({.init_scale = 8, .growth_interval = 100});
  const auto train_step = [&](double of_w, double of_table, bool unscaled_first) {
    optimizer.zero_grad();
    const at::Tensor mine = at::full({1}, rank(), at::kLong);
    const at::Tensor rows = ::torch::embedding(table, mine, -1, false, /*sparse=*/true);
    scaler.scale(weighted(w, of_w) + rows.sum() * of_table).backward();
    if (unscaled_first) scaler.unscale_(optimizer);
    const bool made = scaler.step(optimizer);
    scaler.update();
    return made;
  };
  const bool last = rank() == size() - 1;
  for (const bool first : {false, true}) {
    EXPECT_FALSE(train_step(1, last ? kInfinity : 1, first));
    EXPECT_TRUE(train_step(0.5, 0.5, first));
    EXPECT_FALSE(table.grad().layout() == at::kStrided);
    expect_gradient(w, 0.5);
  }
  EXPECT_TRUE(w.eq(0).all().item<bool>()) << w;
  EXPECT_TRUE(table[rank()].allclose(at::full({2}, 1 - 1.0 / size()))) << table;
  if (size() == 1) return;
  // A rank without samples: its gradients do not count, nor does what they hold.
  optimizer.set_weight(last ? 0 : 1);
  EXPECT_TRUE(train_step(last ? std::nan("") : 0.5, 0.5, false));
}

// Neither found_inf nor the scale travels.
TEST(GradScaler, MakesNoCollective) {
  const at::Tensor w = leaf({4}), v = leaf({4}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w, v}, 0.5), {{"w", w}, {"v", v}});
  GradScaler scaler;
  const auto starts = [&](bool scaled, bool unscaled_first) {
    barrier();
    const Statistics before = statistics();
    optimizer.zero_grad();
    const at::Tensor loss = weighted(w, rank()) + weighted(v, rank());
    (scaled ? scaler.scale(loss) : loss).backward();
    if (unscaled_first) scaler.unscale_(optimizer);
    if (scaled) {
      EXPECT_TRUE(scaler.step(optimizer));
      scaler.update();
    } else {
      optimizer.step();
    }
    const Statistics after = statistics();
    barrier();
    return after.negotiated_starts + after.frozen_starts - before.negotiated_starts -
           before.frozen_starts;
  };
  for (int step = 0; step < 5; ++step) starts(false, false);
  const uint64_t plain = starts(false, false);
  EXPECT_EQ(starts(true, false), plain);
  EXPECT_EQ(starts(true, true), plain);
}

// N ranks with a scaler, clipping and an infinity in the middle, against one process that has
// neither scale nor infinity and leaves that step out.
void compare_clipping(bool by_option, FusedStep fused) {
  const auto options = optim::SGDOptions(0.1).momentum(0.9);
  Net alone = make_net(at::kDouble), net = make_net(at::kDouble);
  optim::SGD plain(alone->parameters(), options);
  DistributedOptimizerOptions with{.bucket_bytes = 2000, .fused_step = fused};
  if (by_option) with.clip_grad_norm = 0.5;
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), options), *net, with);
  GradScaler scaler({.init_scale = 256, .growth_interval = 3});
  for (int step = 0; step < kSteps; ++step) {
    const bool bad = step % 7 == 4;
    if (!bad) {
      plain.zero_grad();
      loss_of(alone, batch_of(step, at::kDouble)).backward();
      ::torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.5);
      plain.step();
    }
    optimizer.zero_grad();
    at::Tensor loss = loss_of(net, shard_of(batch_of(step, at::kDouble)));
    if (bad && rank() == 0) loss = loss * kInfinity;
    scaler.scale(loss).backward();
    if (!by_option) {
      scaler.unscale_(optimizer);
      ::torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    }
    EXPECT_EQ(scaler.step(optimizer), !bad);
    scaler.update();
  }
  expect_equal_on_all_ranks(*net);
  expect_same_parameters(*net, *alone, 1e-9);
}

TEST(GradScaler, ClippingOnNRanksAgainstOneProcess) {
  for (const FusedStep fused : {FusedStep::WhereBitEqual, FusedStep::Never}) {
    compare_clipping(/*by_option=*/false, fused);
    compare_clipping(/*by_option=*/true, fused);
  }
}

TEST(GradScaler, GoesOnFromAnArchive) {
  GradScaler saved({.init_scale = 64, .growth_factor = 3, .growth_interval = 5});
  const at::Tensor w = leaf({1});
  optim::SGD optimizer({w}, 0.0);
  for (int step = 0; step < 7; ++step) {
    w.mutable_grad() = at::ones({1});
    saved.step(optimizer);
    saved.update();
  }
  std::stringstream archive, foreign;
  ::torch::save(saved, archive);
  GradScaler loaded;
  ::torch::save(at::ones({1}), foreign);
  EXPECT_THAT(error_of([&] { ::torch::load(loaded, foreign); }), HasSubstr("no \"scale\""));
  EXPECT_EQ(loaded.get_scale(), 65536);
  ::torch::load(loaded, archive);
  EXPECT_EQ(loaded.get_scale(), 192);
  EXPECT_EQ(loaded.growth_tracker(), 2);
  EXPECT_EQ(loaded.options().growth_interval, 5);
  EXPECT_EQ(loaded.options().growth_factor, 3);
}

TEST(GradScaler, WrongUse) {
  const at::Tensor w = leaf({1}), half = leaf({3}, at::kHalf);
  w.mutable_grad() = at::ones({1});
  optim::SGD optimizer({w}, 0.0);
  GradScaler scaler;
  EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("update() was called before step()"));
  scaler.unscale_(optimizer);
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }), HasSubstr("was called already"));
  scaler.step(optimizer);
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("was called already"));
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }), HasSubstr("called after step()"));
  EXPECT_THAT(error_of([&] { scaler.update(0); }), HasSubstr("the scale is 0"));
  scaler.update();
  optim::SGD narrow({half}, 0.0);
  EXPECT_THAT(error_of([&] { scaler.step(narrow); }), HasSubstr("shape [3] is float16"));
  EXPECT_THAT(error_of([] { GradScaler({.init_scale = 0}); }), HasSubstr("init_scale is 0"));
  EXPECT_THAT(error_of([] { GradScaler({.growth_factor = 1}); }),
              HasSubstr("growth_factor is 1; give a number above 1"));

  GradScaler off({.enabled = false});
  EXPECT_TRUE(off.scale(w).is_same(w));
  w.mutable_grad() = at::full({1}, kInfinity);
  off.unscale_(optimizer);
  EXPECT_TRUE(off.step(optimizer));
  off.update();
  EXPECT_EQ(off.get_scale(), 1);
}

// The mean loss of the last steps, of all ranks.
double train_in(std::optional<at::ScalarType> dtype) {
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::AdamW(net->parameters(), optim::AdamWOptions(0.005)), *net);
  GradScaler scaler({.growth_interval = 20, .enabled = dtype == at::kHalf});
  constexpr int kManySteps = 60;
  double sum = 0;
  for (int step = 0; step < kManySteps; ++step) {
    const Batch batch = shard_of(batch_of(step % 3, at::kFloat));
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Autocast scope(at::kCPU,
                           {.dtype = dtype.value_or(at::kBFloat16), .enabled = dtype.has_value()});
      loss = loss_of(net, batch);
    }
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    if (step >= kManySteps - 3) sum += loss.item<double>() / 3;
  }
  for (const at::Tensor& parameter : net->parameters())
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  expect_equal_on_all_ranks(*net);
  return allreduce(at::full({1}, sum, at::kDouble), {.name = "loss"}).item<double>();
}

TEST(MixedPrecision, TrainsAlike) {
  const double in_float = train_in(std::nullopt);
  const double in_bfloat16 = train_in(at::kBFloat16);
  EXPECT_LT(in_float, 0.8) << "it began at ln(5) = 1.6: else the test says little";
  EXPECT_NEAR(in_bfloat16, in_float, 0.1);
  const double in_float16 = train_in(at::kHalf);  // with a scaler
  EXPECT_NEAR(in_float16, in_float, 0.1);
}

}  // namespace
}  // namespace horon::amp_test
