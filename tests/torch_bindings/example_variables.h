// What the examples of pages and headers use without declaring it; tests/tools/examples.py collects
// them. They are compiled, not linked, so nothing here is defined. A name that means something else
// in one example is declared in the namespace of that example: the path of its file and its number
// there.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <horon/horon.h>
#include <horon/torch_bindings/modules/convert_sync_batchnorm.h>
#include <horon/torch_bindings/modules/sync_batch_norm.h>

namespace examples {

extern at::Tensor a, b, c, x, y, p, noise, embeddings, correct, loss, first_half, second_half;
extern at::Tensor gradient, predictions, targets, batch_loss;
extern int64_t batch_size, step, steps;
extern double mean;
extern int epoch;
void write_report(const std::string& path);
extern std::vector<at::Tensor> tensors, gradients;
extern std::string config, path;
extern horon::ProcessSet own, set;
extern std::vector<std::string> shards;
extern double mine, mean_loss, validation_loss, seconds, scale;
extern int color, epochs;
extern int64_t steps_in_an_epoch, total_steps;

extern torch::nn::Sequential model, generator, discriminator, block;
extern at::Tensor image_embeddings, text_embeddings, mask;
std::tuple<at::Tensor, at::Tensor> project(const at::Tensor& values, const at::Tensor& hidden);
at::Tensor adversarial_loss(const at::Tensor& judged);
at::Tensor contrastive_loss(const at::Tensor& likeness);
extern torch::optim::SGD generator_optimizer, discriminator_optimizer;
using Optimizer = horon::DistributedOptimizer<torch::optim::SGD>;
extern Optimizer optimizer;
extern horon::amp::GradScaler scaler;
extern horon::LrScheduler scheduler;
extern horon::EarlyStopping stopping;
extern horon::ReduceLrOnPlateau plateau;
at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target);

extern horon::IdxDataset dataset;
using Sampler = horon::DistributedRandomSampler;
extern std::unique_ptr<torch::data::StatelessDataLoader<horon::IdxDataset, Sampler>> loader;

namespace readme_md_1 {
at::Tensor loss(const at::Tensor& output, const at::Tensor& target);
}

}  // namespace examples
