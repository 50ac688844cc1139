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

// Three convolutions, as in ResNet-50.
struct BottleneckImpl : nn::Module {
  BottleneckImpl(int64_t from, int64_t inner, int64_t stride)
      : layers(register_module(
            "layers",
            nn::Sequential(convolution(from, inner, 1, 1), nn::BatchNorm2d(inner), nn::ReLU(),
                           convolution(inner, inner, 3, stride), nn::BatchNorm2d(inner), nn::ReLU(),
                           convolution(inner, 4 * inner, 1, 1), nn::BatchNorm2d(4 * inner)))) {
    if (stride == 1 && from == 4 * inner) return;
    shortcut = register_module("shortcut", nn::Sequential(convolution(from, 4 * inner, 1, stride),
                                                          nn::BatchNorm2d(4 * inner)));
  }
  Tensor forward(const Tensor& x) {
    const Tensor kept = shortcut.is_empty() ? x : shortcut->forward(x);
    return torch::relu(layers->forward(x) + kept);
  }
  nn::Sequential layers;
  nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Bottleneck);

// ResNet-50 for 224x224 pixels and 1,000 classes: 25.6 million parameters in 161 tensors.
nn::Sequential make_resnet50() {
  nn::Sequential net(convolution(3, 64, 7, 2), nn::BatchNorm2d(64), nn::ReLU(),
                     nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t from = 64;
  const std::pair<int64_t, int> stages[] = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
  for (const auto& [inner, blocks] : stages) {
    for (int i = 0; i < blocks; ++i) {
      net->push_back(Bottleneck(from, inner, i == 0 && inner != 64 ? 2 : 1));
      from = 4 * inner;
    }
  }
  net->push_back(nn::AdaptiveAvgPool2d(1));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(from, 1000));
  return net;
}

struct GptShape {
  int64_t letters = 256;
  int64_t width = 256;
  int64_t heads = 4;
  int64_t context = 128;
  int64_t layers = 4;
};

struct TransformerLayerImpl : nn::Module {
  explicit TransformerLayerImpl(const GptShape& shape)
      : heads(shape.heads),
        norm1(register_module("norm1", layer_norm(shape.width))),
        attend(register_module("attend", nn::Linear(shape.width, 3 * shape.width))),
        project(register_module("project", nn::Linear(shape.width, shape.width))),
        norm2(register_module("norm2", layer_norm(shape.width))),
        grow(register_module("grow", nn::Linear(shape.width, 4 * shape.width))),
        shrink(register_module("shrink", nn::Linear(4 * shape.width, shape.width))) {}
  Tensor forward(const Tensor& x) {
    const int64_t batch = x.size(0), context = x.size(1), width = x.size(2);
    const auto parts = attend(norm1(x))
                           .view({batch, context, 3, heads, width / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const Tensor mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                             /*is_causal=*/true);
    const Tensor y = x + project(mixed.transpose(1, 2).reshape({batch, context, width}));
    return y + shrink(torch::gelu(grow(norm2(y))));
  }
  static nn::LayerNorm layer_norm(int64_t width) {
    return nn::LayerNorm(nn::LayerNormOptions({width}));
  }

  const int64_t heads;
  nn::LayerNorm norm1;
  nn::Linear attend;
  nn::Linear project;
  nn::LayerNorm norm2;
  nn::Linear grow;
  nn::Linear shrink;
};
TORCH_MODULE(TransformerLayer);

// By default 4 layers of width 256 on bytes: 3.3 million parameters in 52 tensors. The embedding is
// also the output matrix.
struct GptImpl : nn::Module {
  explicit GptImpl(const GptShape& shape)
      : letters(register_module("letters", nn::Embedding(shape.letters, shape.width))),
        places(register_module("places", nn::Embedding(shape.context, shape.width))) {
    torch::NoGradGuard no_grad;
    letters->weight.mul_(0.02);
    places->weight.mul_(0.02);
    for (int i = 0; i < shape.layers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), TransformerLayer(shape)));
    }
    norm = register_module("norm", TransformerLayerImpl::layer_norm(shape.width));
  }
  Tensor forward(const Tensor& text) {
    Tensor x = letters(text) + places(torch::arange(text.size(1), text.options()));
    for (TransformerLayer& layer : layers) x = layer(x);
    return torch::linear(norm(x), letters->weight).flatten(0, 1);
  }
  nn::Embedding letters;
  nn::Embedding places;
  std::vector<TransformerLayer> layers;
  nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Gpt);

// 1,000 normalizations of 64 values: 2,000 parameters of 64 elements.
nn::Sequential make_tiny() {
  nn::Sequential layers;
  for (int i = 0; i < 1000; ++i) layers->push_back(nn::LayerNorm(nn::LayerNormOptions({64})));
  return layers;
}

template <class Model>
TrainingModel make_training(const std::string& name, at::Device device, Model model,
                            const Tensor& host_input, const Tensor& host_target) {
  const Tensor input = host_input.to(device);
  const Tensor target = host_target.to(device);
  model->to(device);
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

const std::vector<std::string>& large_model_names() {
  static const std::vector<std::string> names{"resnet50", "gpt2"};
  return names;
}

TrainingModel make_model(const std::string& name, uint64_t batch_seed, at::Device device) {
  constexpr uint64_t parameter_seed = 1;
  torch::manual_seed(batch_seed + 1000);
  const auto images = [](at::IntArrayRef sizes) { return torch::randn(sizes); };
  const auto classes = [](int64_t count) { return torch::randint(10, {count}, torch::kLong); };
  const auto gpt = [&](const GptShape& shape, int64_t batch) {
    const Tensor text = torch::randint(shape.letters, {batch, shape.context + 1}, torch::kLong);
    torch::manual_seed(parameter_seed);
    return make_training(name, device, Gpt(shape), text.slice(1, 0, shape.context),
                         text.slice(1, 1).reshape({-1}));
  };
  const auto seeded = [](auto make) {
    torch::manual_seed(parameter_seed);
    return make();
  };
  if (name == "cnn") {
    const Tensor input = images({64, 1, 28, 28});
    const Tensor target = classes(64);
    return make_training(name, device, seeded(make_cnn), input, target);
  }
  if (name == "resnet18") {
    const Tensor input = images({8, 3, 32, 32});
    const Tensor target = classes(8);
    return make_training(name, device, seeded(make_resnet18), input, target);
  }
  if (name == "deep") {
    const Tensor input = images({64, 64});
    const Tensor target = classes(64);
    return make_training(name, device, seeded(make_deep), input, target);
  }
  if (name == "tiny") {
    const Tensor input = images({8, 64});
    const Tensor target = classes(8);
    return make_training(name, device, seeded(make_tiny), input, target);
  }
  if (name == "resnet50") {
    const Tensor input = images({64, 3, 224, 224});
    const Tensor target = classes(64);
    return make_training(name, device, seeded(make_resnet50), input, target);
  }
  if (name == "gpt") return gpt(GptShape(), 4);
  if (name == "gpt2") return gpt({50257, 768, 12, 1024, 12}, 4);
  throw Error(ErrorCode::InvalidArgument, "there is no model \"" + name + "\"");
}

}  // namespace horon::bench
