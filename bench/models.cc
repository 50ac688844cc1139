#include "horon/bench/models.h"

#include <cmath>

#include <torch/torch.h>

#include "horon/core/base/error.h"

namespace horon::bench {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

// 28x28 pixels, 0.42 million parameters in 8 tensors.
nn::Sequential make_cnn() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 3).padding(1)), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)),
                        nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(64 * 7 * 7, 128),
                        nn::ReLU(), nn::Linear(128, 10));
}

// 200 layers of 64x64 and one to 10 classes: 402 tensors.
nn::Sequential make_deep() {
  nn::Sequential layers;
  for (int i = 0; i < 200; ++i) {
    layers->push_back(nn::Linear(64, 64));
    layers->push_back(nn::ReLU());
  }
  layers->push_back(nn::Linear(64, 10));
  return layers;
}

nn::Conv2d convolution(int64_t from, int64_t to, int64_t kernel, int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// The basic block of He et al. 2016, "Deep Residual Learning for Image Recognition".
struct BlockImpl : nn::Module {
  BlockImpl(int64_t from, int64_t to, int64_t stride)
      : conv1(register_module("conv1", convolution(from, to, 3, stride))),
        norm1(register_module("norm1", nn::BatchNorm2d(to))),
        conv2(register_module("conv2", convolution(to, to, 3, 1))),
        norm2(register_module("norm2", nn::BatchNorm2d(to))) {
    if (stride == 1 && from == to) return;
    shortcut = register_module(
        "shortcut", nn::Sequential(convolution(from, to, 1, stride), nn::BatchNorm2d(to)));
  }
  Tensor forward(const Tensor& x) {
    const Tensor kept = shortcut.is_empty() ? x : shortcut->forward(x);
    const Tensor y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + kept);
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
  nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Block);

// ResNet-18 for 32x32 pixels: 11.2 million parameters in 62 tensors.
nn::Sequential make_resnet18() {
  nn::Sequential net(convolution(3, 64, 3, 1), nn::BatchNorm2d(64), nn::ReLU());
  int64_t from = 64;
  for (const int64_t to : {64, 128, 256, 512}) {
    net->push_back(Block(from, to, to == 64 ? 1 : 2));
    net->push_back(Block(to, to, 1));
    from = to;
  }
  net->push_back(nn::AdaptiveAvgPool2d(1));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(512, 10));
  return net;
}

constexpr int64_t kLetters = 256, kWidth = 256, kHeads = 4, kContext = 128, kLayers = 4;

struct TransformerLayerImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    const int64_t batch = x.size(0);
    const auto parts = attend(norm1(x))
                           .view({batch, kContext, 3, kHeads, kWidth / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const Tensor mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                             /*is_causal=*/true);
    const Tensor y = x + project(mixed.transpose(1, 2).reshape({batch, kContext, kWidth}));
    return y + shrink(torch::gelu(grow(norm2(y))));
  }
  nn::LayerNorm norm1 = register_module("norm1", layer_norm());
  nn::Linear attend = register_module("attend", nn::Linear(kWidth, 3 * kWidth));
  nn::Linear project = register_module("project", nn::Linear(kWidth, kWidth));
  nn::LayerNorm norm2 = register_module("norm2", layer_norm());
  nn::Linear grow = register_module("grow", nn::Linear(kWidth, 4 * kWidth));
  nn::Linear shrink = register_module("shrink", nn::Linear(4 * kWidth, kWidth));

  static nn::LayerNorm layer_norm() { return nn::LayerNorm(nn::LayerNormOptions({kWidth})); }
};
TORCH_MODULE(TransformerLayer);

// 4 layers of width 256 on bytes: 3.3 million parameters in 52 tensors. The embedding is also the
// output matrix.
struct GptImpl : nn::Module {
  GptImpl() {
    torch::NoGradGuard no_grad;
    letters->weight.mul_(0.02);
    places->weight.mul_(0.02);
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), TransformerLayer()));
    }
  }
  Tensor forward(const Tensor& text) {
    Tensor x = letters(text) + places(torch::arange(kContext));
    for (TransformerLayer& layer : layers) x = layer(x);
    return torch::linear(norm(x), letters->weight).flatten(0, 1);
  }
  nn::Embedding letters = register_module("letters", nn::Embedding(kLetters, kWidth));
  nn::Embedding places = register_module("places", nn::Embedding(kContext, kWidth));
  std::vector<TransformerLayer> layers;
  nn::LayerNorm norm = register_module("norm", TransformerLayerImpl::layer_norm());
};
TORCH_MODULE(Gpt);

// 1,000 normalizations of 64 values: 2,000 parameters of 64 elements.
nn::Sequential make_tiny() {
  nn::Sequential layers;
  for (int i = 0; i < 1000; ++i) layers->push_back(nn::LayerNorm(nn::LayerNormOptions({64})));
  return layers;
}

template <class Model>
TrainingModel make_training(const std::string& name, Model model, const Tensor& input,
                            const Tensor& target) {
  TrainingModel result;
  result.name = name;
  for (const auto& parameter : model->named_parameters()) {
    result.parameters.emplace_back(parameter.key(), parameter.value());
  }
  result.loss = [model, input, target]() mutable {
    return torch::cross_entropy_loss(model->forward(input), target);
  };
  return result;
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"cnn", "resnet18", "deep", "gpt", "tiny"};
  return names;
}

TrainingModel make_model(const std::string& name, uint64_t batch_seed) {
  constexpr uint64_t parameter_seed = 1;
  torch::manual_seed(batch_seed + 1000);
  const auto images = [](at::IntArrayRef sizes) { return torch::randn(sizes); };
  const auto classes = [](int64_t count) { return torch::randint(10, {count}, torch::kLong); };
  const auto seeded = [](auto make) {
    torch::manual_seed(parameter_seed);
    return make();
  };
  if (name == "cnn") {
    const Tensor input = images({64, 1, 28, 28});
    const Tensor target = classes(64);
    return make_training(name, seeded(make_cnn), input, target);
  }
  if (name == "resnet18") {
    const Tensor input = images({8, 3, 32, 32});
    const Tensor target = classes(8);
    return make_training(name, seeded(make_resnet18), input, target);
  }
  if (name == "deep") {
    const Tensor input = images({64, 64});
    const Tensor target = classes(64);
    return make_training(name, seeded(make_deep), input, target);
  }
  if (name == "tiny") {
    const Tensor input = images({8, 64});
    const Tensor target = classes(8);
    return make_training(name, seeded(make_tiny), input, target);
  }
  if (name == "gpt") {
    const Tensor text = torch::randint(kLetters, {4, kContext + 1}, torch::kLong);
    const Tensor next = text.slice(1, 1).reshape({-1});
    return make_training(name, seeded([] { return Gpt(); }), text.slice(1, 0, kContext), next);
  }
  throw Error(ErrorCode::InvalidArgument, "there is no model \"" + name + "\"");
}

}  // namespace horon::bench
