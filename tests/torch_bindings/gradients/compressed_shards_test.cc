// Gradients that travel in 16 bits to the owners of their parameters alone.
#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/gradients/shard_gradients_support.h"

namespace horon::compressed_shards_test {
namespace {

using namespace testing_support;

// In 16 bits, gradients are rounded as they are without shard_gradients.
TEST(CompressedShards, TrainAsWithoutTheOption) {
  for (const Compression compression : {Compression::Float16, Compression::BFloat16}) {
    for (const double predivide : {1.0, 2.0}) {
      auto pair =
          sgd(to_owners({.compression = compression, .gradient_predivide_factor = predivide}));
      for (int step = 0; step < 5; ++step) {
        pair.both([&](Net& net, auto& optimizer) {
          if (step != 3) optimizer.zero_grad();
          if (step > 1) optimizer.set_weight(rank() + 1);
          step_on(net, optimizer, step);
        });
      }
      // Where a step adds to the older gradient, the owner keeps the older one as it was.
      expect_same_parameters(*pair.net, *pair.expected, 2e-3);
      expect_equal_on_all_ranks(*pair.net);
    }
    auto pair = adam(to_owners({.compression = compression}));
    for (int step = 0; step < 4; ++step) {
      pair.both([&](Net& net, auto& optimizer) {
        optimizer.zero_grad();
        step_on(net, optimizer, step);
      });
    }
    expect_same_bits(pair.net, pair.expected);
  }
}

// Sums are rounded to 16 bits before they are multiplied, as without the option.
TEST(CompressedShards, AreScaledBehindTheRounding) {
  for (const Compression compression : {Compression::Float16, Compression::BFloat16}) {
    auto divided = sgd(to_owners({.compression = compression, .gradient_predivide_factor = 3}));
    auto averaged = sgd(to_owners({.compression = compression,
                                   .backward_passes_per_step = 3,
                                   .average_aggregated_gradients = true}));
    for (int step = 0; step < 3; ++step) {
      divided.both([&](Net& net, auto& optimizer) {
        optimizer.zero_grad();
        step_on(net, optimizer, step);
      });
      averaged.both([&](Net& net, auto& optimizer) {
        optimizer.zero_grad();
        for (int pass = 0; pass < 2; ++pass) {
          loss_of(net, shard_of(batch_of(10 + 3 * step + pass, at::kFloat))).backward();
        }
        step_on(net, optimizer, 12 + 3 * step);
      });
    }
    expect_same_bits(divided.net, divided.expected);
    expect_same_bits(averaged.net, averaged.expected);
  }
}

// gradient_predivide_factor is for gradients whose mean is too large for float16.
TEST(CompressedShards, LargeGradientsFitWithAFactor) {
  auto pair = sgd(to_owners({.compression = Compression::Float16, .gradient_predivide_factor = 4}));
  pair.both([](Net& net, auto& optimizer) {
    optimizer.zero_grad();
    at::Tensor loss;
    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor part = parameter.sum() * 1e5;
      loss = loss.defined() ? loss + part : part;
    }
    loss.backward();
    optimizer.step();
  });
  for (const at::Tensor& parameter : pair.net->parameters()) {
    EXPECT_TRUE(at::isfinite(parameter).all().item<bool>());
  }
  expect_same_bits(pair.net, pair.expected);
}

}  // namespace
}  // namespace horon::compressed_shards_test
