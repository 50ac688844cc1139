// A small model with every kind of parameter, and the oracle of training: N ranks on shards of a
// batch take the steps of one process on the whole batch.
#pragma once

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::testing_support {

constexpr int kSteps = 20;
constexpr int64_t kShard = 4;  // samples per rank and step

struct NetImpl : ::torch::nn::Module {
  NetImpl() {
    conv =
        register_module("conv", ::torch::nn::Conv2d(::torch::nn::Conv2dOptions(2, 6, 3).stride(2)));
    norm = register_module("norm", ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({54})));
    hidden = register_module("hidden", ::torch::nn::Linear(54, 17));
    out = register_module("out", ::torch::nn::Linear(17, 5));
    unused = register_parameter("unused", ::torch::ones({3}));
    empty = register_parameter("empty", ::torch::zeros({0, 4}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor features = ::torch::relu(conv(x)).flatten(1);
    return out(::torch::tanh(hidden(norm(features))));
  }
  ::torch::nn::Conv2d conv{nullptr};
  ::torch::nn::LayerNorm norm{nullptr};
  ::torch::nn::Linear hidden{nullptr}, out{nullptr};
  at::Tensor unused, empty;
};
TORCH_MODULE(Net);

struct Batch {
  at::Tensor images, labels;

  Batch narrow(int64_t begin, int64_t length) const {
    return {images.narrow(0, begin, length), labels.narrow(0, begin, length)};
  }
};

// The whole batch of a step: the same on every rank.
inline Batch batch_of(int step, at::ScalarType dtype, int64_t samples = kShard * size()) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 + step);
  return {at::randn({samples, 2, 8, 8}, generator, at::kDouble).to(dtype),
          at::randint(0, 5, {samples}, generator, at::kLong)};
}

inline Batch shard_of(const Batch& batch) { return batch.narrow(kShard * rank(), kShard); }

inline Net make_net(at::ScalarType dtype) {
  ::torch::manual_seed(7);
  Net net;
  net->to(dtype);
  return net;
}

inline at::Tensor loss_of(Net& net, const Batch& batch) {
  return ::torch::nn::functional::cross_entropy(net->forward(batch.images), batch.labels);
}

inline void expect_equal_on_all_ranks(const ::torch::nn::Module& net) {
  for (const auto& item : net.named_parameters()) {
    const at::Tensor bits =
        item.value().detach().contiguous().view(at::kByte).to(at::kLong).flatten();
    const at::Tensor low = allreduce(bits, {.name = "low", .op = ReduceOp::Min});
    const at::Tensor high = allreduce(bits, {.name = "high", .op = ReduceOp::Max});
    EXPECT_TRUE(low.equal(high)) << item.key();
  }
}

inline void expect_same_parameters(const ::torch::nn::Module& net,
                                   const ::torch::nn::Module& expected, double tolerance) {
  const auto parameters = expected.named_parameters();
  for (const auto& item : net.named_parameters()) {
    const at::Tensor error = (item.value() - parameters[item.key()]).abs();
    EXPECT_LE(error.numel() == 0 ? 0 : error.max().item<double>(), tolerance) << item.key();
  }
}

}  // namespace horon::testing_support
