// Which BatchNorms of a model are replaced, what stays, and a training with them.
#include "horon/torch_bindings/modules/convert_sync_batchnorm.h"

#include <set>
#include <sstream>
#include <string>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "horon/tests/torch_bindings/modules/modules_support.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/modules/sync_batch_norm.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::convert_sync_batchnorm_test {
namespace {

using namespace testing_support;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm3d;
using torch::nn::Sequential;

class ConvertSyncBatchNorm : public testing::Test {
 protected:
  void TearDown() override { barrier(); }
};

std::set<const void*> tensors_of(const torch::nn::Module& module) {
  std::set<const void*> all;
  for (const auto& tensor : module.parameters()) all.insert(tensor.unsafeGetTensorImpl());
  for (const auto& tensor : module.buffers()) all.insert(tensor.unsafeGetTensorImpl());
  return all;
}

// A class that holds containers, and one that holds a BatchNorm.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    body = register_module("body", Sequential(torch::nn::Conv2d(2, 3, 1), BatchNorm2d(3)));
    list = register_module("list", torch::nn::ModuleList(BatchNorm1d(4), BatchNorm3d(5)));
    dict->update({{"norm", BatchNorm2d(6).ptr()}});
    register_module("dict", dict);
  }
  at::Tensor forward(const at::Tensor& x) { return body->forward(x); }
  Sequential body;
  torch::nn::ModuleList list;
  torch::nn::ModuleDict dict;
};
TORCH_MODULE(Block);
struct TypedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return norm(x); }
  BatchNorm2d norm = register_module("norm", BatchNorm2d(3));
};
TORCH_MODULE(Typed);
struct OwnBatchNormImpl : torch::nn::BatchNorm2dImpl {
  using torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;
};
TORCH_MODULE(OwnBatchNorm);

TEST_F(ConvertSyncBatchNorm, ContainersWhereverTheyAre) {
  Block block;
  block->body[1]->as<BatchNorm2d>()->weight.set_requires_grad(false);
  block->dict->at<torch::nn::BatchNorm2dImpl>("norm").eval();
  const auto tensors = tensors_of(*block);
  const auto names = block->named_parameters().keys();
  const auto buffer_names = block->named_buffers().keys();
  convert_sync_batchnorm(*block);
  EXPECT_EQ(tensors_of(*block), tensors);
  EXPECT_EQ(block->named_parameters().keys(), names);
  EXPECT_EQ(block->named_buffers().keys(), buffer_names);
  auto* const first = block->body[1]->as<SyncBatchNorm>();
  ASSERT_NE(first, nullptr);
  EXPECT_FALSE(first->weight.requires_grad());
  EXPECT_TRUE(first->bias.requires_grad());
  EXPECT_EQ(first, block->body->named_children()["1"].get());
  EXPECT_EQ(block->list->at<SyncBatchNormImpl>(1).options.num_features(), 5);
  EXPECT_FALSE(block->dict->at<SyncBatchNormImpl>("norm").is_training());
  block->forward(numbers({samples_of(rank()) + 1, 2, 2, 2}, 1, at::kFloat)).sum().backward();
  EXPECT_EQ(first->num_batches_tracked.item<int64_t>(), 1);
  convert_sync_batchnorm(*block);  // there is nothing left to do
  EXPECT_EQ(block->body[1].get(), first);
}

TEST_F(ConvertSyncBatchNorm, OneModuleInTwoPlacesStaysOne) {
  BatchNorm1d shared(2);
  Sequential model(shared, torch::nn::Tanh(), shared);
  convert_sync_batchnorm(*model);
  EXPECT_EQ(model[0], model[2]);
  EXPECT_NE(model[0]->as<SyncBatchNorm>(), nullptr);
}

TEST_F(ConvertSyncBatchNorm, WhatCanNotBeReplacedIsNamedAndNothingIsChanged) {
  Sequential model(BatchNorm2d(3), Typed(), OwnBatchNorm(3));
  const torch::nn::Module* const before = model[0].get();
  EXPECT_THAT(error_of([&] { convert_sync_batchnorm(*model); }),
              AllOf(StartsWith("invalid argument"), HasSubstr("\"1.norm\", \"2\""),
                    Not(HasSubstr("\"0\"")), HasSubstr("horon::SyncBatchNorm")));
  EXPECT_EQ(model[0].get(), before);
}

TEST_F(ConvertSyncBatchNorm, AnyModule) {
  torch::nn::AnyModule any(BatchNorm2d(3));
  EXPECT_THAT(error_of([&] { convert_sync_batchnorm(*any.ptr()); }), HasSubstr("itself"));
  convert_sync_batchnorm(any);
  EXPECT_NE(any.ptr()->as<SyncBatchNorm>(), nullptr);
}

TEST_F(ConvertSyncBatchNorm, ArchivesAreThoseOfBatchNorm) {
  BatchNorm2d before(3);
  before->running_mean.fill_(7);
  std::stringstream archive;
  torch::save(before, archive);
  SyncBatchNorm after(3);
  torch::load(after, archive);
  expect_near(after->running_mean, before->running_mean, 0);
  const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(after->clone());
  expect_near(copy->running_mean, before->running_mean, 0);
  std::ostringstream text;
  text << after;
  EXPECT_THAT(text.str(), HasSubstr("horon::SyncBatchNorm(3, eps=1e-05, momentum=0.1"));
}

Sequential small_model() {
  Sequential model(torch::nn::Conv2d(2, 3, 2), BatchNorm2d(3), torch::nn::Tanh(),
                   torch::nn::Conv2d(3, 2, 2), BatchNorm2d(2));
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  double seed = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    parameter.copy_(numbers(parameter.sizes().vec(), ++seed));
  }
  return model;
}

// N ranks with parts of the samples train as one with all of them.
TEST_F(ConvertSyncBatchNorm, TrainingEqualsOneProcess) {
  Sequential mine = small_model(), whole = small_model();
  DistributedOptimizer optimizer(torch::optim::SGD(mine->parameters(), 0.1), *mine);
  convert_sync_batchnorm(*mine);
  torch::optim::SGD plain(whole->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x = numbers({all_samples(), 2, 4, 4}, step);
    const at::Tensor target = numbers({all_samples(), 2, 2, 2}, step + 0.5);
    plain.zero_grad();
    (whole->forward(x) - target).pow(2).mean().backward();
    plain.step();
    optimizer.zero_grad();
    const double share = double(size()) / target.numel();
    ((mine->forward(my_part(x)) - my_part(target)).pow(2).sum() * share).backward();
    optimizer.step();
  }
  for (const auto& parameter : whole->named_parameters()) {
    expect_near(mine->named_parameters()[parameter.key()], parameter.value(), 1e-10);
  }
  for (const auto& buffer : whole->named_buffers()) {
    expect_near(mine->named_buffers()[buffer.key()], buffer.value(), 1e-10);
  }
}

}  // namespace
}  // namespace horon::convert_sync_batchnorm_test
