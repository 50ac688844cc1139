// The steps of LARS and LAMB over memory against the same in LibTorch's operations, which a
// parameter with gaps still takes; and the options of their groups.
#include "horon/torch_bindings/lr/layer_step.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/archives.h"
#include "horon/torch_bindings/lr/lamb.h"
#include "horon/torch_bindings/lr/lars.h"

namespace horon::layer_step_test {
namespace {

at::Tensor random(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::kDouble).to(dtype);
}

// The same values, with gaps.
at::Tensor spread(const at::Tensor& values) {
  at::Tensor wide = at::zeros({values.numel(), 2}, values.options());
  at::Tensor narrow = wide.select(1, 0);
  narrow.copy_(values.flatten());
  return narrow;
}

at::Tensor as_leaf(const at::Tensor& values) { return values.detach().requires_grad_(true); }

const std::vector<int64_t> kSizes{1, 7, 8, 9, 1000, 1024, 1031, 16'384, 16'391, 100'003};

LarsOptions lars_with(bool momentum, bool decay, bool correction) {
  return LarsOptions(0.3)
      .momentum(momentum ? 0.9 : 0)
      .weight_decay(decay ? 0.01 : 0)
      .trust_coefficient(0.1)
      .momentum_correction(correction);
}
LambOptions lamb_with(bool decay) { return LambOptions(0.01).weight_decay(decay ? 0.1 : 0); }

template <class Opt, class Options>
void compare(const Options& options, at::ScalarType dtype, double tolerance) {
  for (const int64_t size : kSizes) {
    const at::Tensor start = random({size}, size, dtype);
    const at::Tensor dense = as_leaf(start.clone()), gaps = as_leaf(spread(start));
    ASSERT_TRUE(torch_detail::has_layer_step(dense));
    ASSERT_EQ(torch_detail::has_layer_step(gaps), size == 1);  // one element has no gaps
    Opt over_memory({dense}, options), in_operations({gaps}, options);
    for (int step = 0; step < 5; ++step) {
      const at::Tensor gradient = random({size}, 100 + step, dtype);
      dense.mutable_grad() = gradient.clone();
      gaps.mutable_grad() = gradient.clone();
      const auto version = dense._version();
      over_memory.step();
      in_operations.step();
      EXPECT_GT(dense._version(), version);  // a graph that was made before is outdated
      EXPECT_TRUE(dense.grad().equal(gradient));
    }
    EXPECT_TRUE(at::allclose(dense, gaps, tolerance, tolerance))
        << size << " elements: " << (dense - gaps).abs().max();
  }
}

// Where LibTorch multiplies and adds with one rounding the last bits differ.
TEST(LayerStep, EqualsLibTorchsOperations) {
  for (const auto& [dtype, tolerance] : {std::pair(at::kFloat, 2e-6), {at::kDouble, 1e-14}}) {
    for (const bool decay : {true, false}) {
      compare<Lars>(lars_with(true, decay, true), dtype, tolerance);
      compare<Lars>(lars_with(true, decay, false), dtype, tolerance);
      compare<Lars>(lars_with(false, decay, true), dtype, tolerance);
      compare<Lars>(lars_with(true, decay, true).adapt(false), dtype, tolerance);
      compare<Lamb>(lamb_with(decay), dtype, tolerance);
      compare<Lamb>(lamb_with(decay).adapt(false), dtype, tolerance);
      compare<Lamb>(lamb_with(decay).largest_norm(0.5), dtype, tolerance);
      compare<Lamb>(lamb_with(decay).least_norm(3), dtype, tolerance);
    }
  }
}

// Three steps; the bits of the parameter at their end.
template <class Opt, class Options>
at::Tensor steps_with(const Options& options, const at::Tensor& parameter,
                      at::MemoryFormat of_gradients) {
  Opt optimizer({parameter}, options);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor gradient = random(parameter.sizes(), step, parameter.scalar_type());
    parameter.mutable_grad() = gradient.contiguous(of_gradients);
    optimizer.step();
  }
  return parameter.detach();
}

template <class Opt, class Options>
void expect_same_bits(const Options& options) {
  const at::Tensor start = random({3, 5, 64, 64}, 1, at::kFloat);
  const auto run = [&](at::MemoryFormat format, at::MemoryFormat of_gradients) {
    return steps_with<Opt>(options, as_leaf(start.clone(format)), of_gradients);
  };
  const auto rows = at::MemoryFormat::Contiguous, last = at::MemoryFormat::ChannelsLast;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor want = run(rows, rows), want_last = run(last, last);
  at::set_num_threads(2);
  EXPECT_TRUE(run(rows, rows).equal(want));
  at::set_num_threads(threads);
  // Ranks may have their gradients in other layouts.
  EXPECT_TRUE(run(rows, last).equal(want));
  EXPECT_TRUE(run(last, rows).equal(want_last));
  EXPECT_TRUE(run(last, last).equal(want_last));
  EXPECT_TRUE(at::allclose(want_last, want, 1e-5, 1e-6));
}

TEST(LayerStep, BitsDependNeitherOnThreadsNorOnTheGradientsLayout) {
  expect_same_bits<Lars>(lars_with(true, true, true));
  expect_same_bits<Lamb>(lamb_with(true));
}

// A model that takes another layout in mid-training, or loads averages that have another.
template <class Opt, class Options>
void expect_same_in_another_layout(const Options& options) {
  const at::Tensor start = random({3, 5, 8, 8}, 1, at::kFloat);
  const at::Tensor stays = as_leaf(start.clone()), turns = as_leaf(start.clone());
  Opt of_stays({stays}, options), of_turns({turns}, options);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) turns.set_data(turns.detach().contiguous(at::MemoryFormat::ChannelsLast));
    for (const at::Tensor& each : {stays, turns}) {
      each.mutable_grad() = random(start.sizes(), step, at::kFloat);
    }
    of_stays.step();
    of_turns.step();
  }
  EXPECT_TRUE(at::allclose(turns, stays, 1e-5, 1e-6)) << (turns - stays).abs().max();
}

TEST(LayerStep, OfAParameterThatTakesAnotherLayout) {
  expect_same_in_another_layout<Lars>(lars_with(true, true, true));
  expect_same_in_another_layout<Lamb>(lamb_with(true));
}

// A complex parameter moves as a real one of its real and imaginary parts.
template <class Opt, class Options>
void compare_complex(const Options& options) {
  for (const at::ScalarType dtype : {at::kComplexFloat, at::kComplexDouble}) {
    const at::Tensor start = random({50, 2}, 3, c10::toRealValueType(dtype));
    const at::Tensor real = as_leaf(start.clone());
    const at::Tensor complex = as_leaf(at::view_as_complex(start.clone()));
    Opt of_real({real}, options), of_complex({complex}, options);
    for (int step = 0; step < 3; ++step) {
      real.mutable_grad() = random({50, 2}, 10 + step, real.scalar_type());
      const at::Tensor gradient = at::view_as_complex(real.grad().clone());
      // Autograd may give a conjugate that is not in memory.
      complex.mutable_grad() = step == 1 ? gradient.conj_physical().conj() : gradient;
      of_real.step();
      of_complex.step();
    }
    EXPECT_TRUE(at::allclose(at::view_as_real(complex.detach()), real, 1e-5, 1e-6)) << dtype;
    EXPECT_GT((real - start).abs().max().item<double>(), 1e-3);
  }
}

TEST(LayerStep, ComplexParameters) {
  compare_complex<Lars>(lars_with(true, true, true));
  compare_complex<Lamb>(lamb_with(true));
}

TEST(LayerStep, LambRefusesTheComplexAveragesOfOlderVersions) {
  const at::Tensor weight = as_leaf(at::complex(at::ones({3}), at::ones({3})));
  Lamb older({weight}), now({weight});
  auto state = std::make_unique<LambParamState>();
  state->step(1)
      .exp_avg(at::zeros_like(weight.detach()))
      .exp_avg_sq(at::zeros_like(weight.detach()));
  older.state()[weight.unsafeGetTensorImpl()] = std::move(state);
  EXPECT_THAT(test::error_of([&] { testing_support::hand_over(older, now); }),
              testing::AllOf(testing::HasSubstr("complex averages for a parameter of shape [3]"),
                             testing::HasSubstr("Load the model without its optimizer")));
  EXPECT_TRUE(now.state().empty()) << "it goes on as it was";
}

// A parameter whose memory has the imaginary parts with the other sign.
TEST(LayerStep, OfALazyConjugate) {
  const at::Tensor values = at::complex(at::arange(4.0F), at::arange(4.0F) + 1);
  const at::Tensor gradient = at::complex(at::ones({4}), at::arange(4.0F) - 2);
  const at::Tensor turned = values.conj().clone().conj();  // the values, lazily
  ASSERT_TRUE(turned.is_conj());
  const at::Tensor plain = as_leaf(values.clone()), lazy = as_leaf(turned);
  for (const at::Tensor& each : {plain, lazy}) {
    Lamb optimizer({each}, LambOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      each.mutable_grad() = gradient.clone();
      optimizer.step();
    }
  }
  EXPECT_FALSE(plain.equal(values));
  EXPECT_TRUE(lazy.resolve_conj().equal(plain)) << lazy << plain;
}

// A group with other options than the defaults, in both constructors and added later. Wrong options
// leave the optimizer as it was.
template <class Opt, class Options>
void expect_own_options(const Options& defaults) {
  const auto group_with = [](const ::torch::optim::OptimizerOptions& options) {
    return ::torch::optim::OptimizerParamGroup({as_leaf(at::ones({2}))}, options.clone());
  };
  Options other = defaults;
  other.lr(0.25).adapt(false);
  Opt optimizer({group_with(other), {{as_leaf(at::ones({2}))}}}, defaults);
  optimizer.add_param_group(group_with(other));
  const auto& groups = optimizer.param_groups();
  ASSERT_EQ(groups.size(), 3U);
  for (const size_t own : {0, 2}) {
    const auto& options = static_cast<const Options&>(groups[own].options());
    EXPECT_EQ(options.lr(), 0.25) << own;
    EXPECT_FALSE(options.adapt()) << own;
  }
  EXPECT_EQ(groups[1].options().get_lr(), defaults.lr());
  Options wrong = defaults;
  wrong.lr(-1);
  EXPECT_THAT(test::error_of([&] { optimizer.add_param_group(group_with(wrong)); }),
              testing::HasSubstr("lr is -1"));
  const ::torch::optim::SGDOptions foreign(1);
  EXPECT_THAT(test::error_of([&] { optimizer.add_param_group(group_with(foreign)); }),
              testing::HasSubstr("has the options of another optimizer"));
  EXPECT_EQ(optimizer.param_groups().size(), 3U);
}

TEST(LayerGroups, OptionsOfTheirOwn) {
  expect_own_options<Lars>(LarsOptions(0.5));
  expect_own_options<Lamb>(LambOptions(0.5));
}

TEST(LayerStep, NoElements) {
  const at::Tensor empty = as_leaf(at::zeros({0, 3}));
  empty.mutable_grad() = at::zeros({0, 3});
  Lars({empty}, LarsOptions(1)).step();
  Lamb({empty}).step();
}

}  // namespace
}  // namespace horon::layer_step_test
