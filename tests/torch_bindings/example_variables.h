// What the examples of pages and headers use without declaring it; tests/tools/examples.py collects
// them. They are compiled, not linked, so nothing here is defined. A name that means something else
// in one example is declared in the namespace of that example: the path of its file and its number
// there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <horon/horon.h>

namespace examples {

extern at::Tensor a, b, c, x, y, p, noise, embeddings, correct, loss, first_half, second_half;
extern at::Tensor gradient;
extern std::vector<at::Tensor> tensors, gradients;
extern std::string config, path;
extern double mine, seconds, scale;
extern int color, epochs;

extern torch::nn::Sequential model, generator, discriminator;
at::Tensor adversarial_loss(const at::Tensor& judged);
at::Tensor contrastive_loss(const at::Tensor& likeness);
extern torch::optim::SGD generator_optimizer, discriminator_optimizer;
using Optimizer = horon::DistributedOptimizer<torch::optim::SGD>;
extern Optimizer optimizer;

extern horon::IdxDataset dataset;
using Sampler = horon::DistributedRandomSampler;
extern std::unique_ptr<torch::data::StatelessDataLoader<horon::IdxDataset, Sampler>> loader;

namespace readme_md_1 {
at::Tensor loss(const at::Tensor& output, const at::Tensor& target);
}

}  // namespace examples
