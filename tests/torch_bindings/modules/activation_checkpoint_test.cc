// A checkpointed part against the same part called plainly: the same bits.
#include "horon/torch_bindings/modules/activation_checkpoint.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>

#include <ATen/autocast_mode.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "horon/tests/torch_bindings/modules/modules_support.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/modules/sync_batch_norm.h"

namespace horon::activation_checkpoint_test {
namespace {

using namespace testing_support;
using torch::nn::Dropout;
using torch::nn::Linear;
using torch::nn::Sequential;
using Tensors = std::vector<at::Tensor>;

class ActivationCheckpoint : public testing::Test {
 protected:
  void TearDown() override { barrier(); }
};

at::Tensor inputs(double seed = 0) { return numbers({4, 6}, seed, at::kFloat); }

Sequential block(double seed = 0) {
  Sequential made(Linear(6, 8), Dropout(0.4), torch::nn::Tanh(), Linear(8, 6));
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : made->parameters()) {
    parameter.copy_(numbers(parameter.sizes().vec(), ++seed, at::kFloat) * 0.3);
  }
  return made;
}

at::Tensor random_state() { return at::globalContext().defaultGenerator(at::kCPU).get_state(); }

// What a training step gives, down to the random numbers that come after it.
Tensors step(const Tensors& leaves, const std::function<at::Tensor()>& loss_of) {
  at::manual_seed(7);
  for (const at::Tensor& leaf : leaves) leaf.mutable_grad().reset();
  const at::Tensor loss = loss_of();
  loss.backward();
  Tensors all{loss.detach()};
  for (const at::Tensor& leaf : leaves) {
    all.push_back(leaf.grad().defined() ? leaf.grad().clone() : at::full({}, -1.0));
  }
  all.push_back(random_state());
  return all;
}

void expect_same_step(const Tensors& leaves, const std::function<at::Tensor()>& plain,
                      const std::function<at::Tensor()>& checkpointed) {
  const Tensors want = step(leaves, plain);
  for (int i = 0; i < 2; ++i) {
    const Tensors got = step(leaves, checkpointed);
    for (size_t k = 0; k < want.size(); ++k) expect_same_bits(got[k], want[k]);
  }
}

Tensors with(Tensors tensors, const at::Tensor& one) {
  tensors.push_back(one);
  return tensors;
}

TEST_F(ActivationCheckpoint, SameBitsAsThePlainRun) {
  Sequential first = block(1), second = block(2);
  const at::Tensor x = inputs().requires_grad_(true);
  Tensors leaves = with(first->parameters(), x);
  for (const at::Tensor& parameter : second->parameters()) leaves.push_back(parameter);
  expect_same_step(
      leaves, [&] { return second->forward(first->forward(x) * 2).pow(2).sum(); },
      [&] { return checkpoint(second, checkpoint(first, x) * 2).pow(2).sum(); });
  EXPECT_FALSE(recomputing());
}

TEST_F(ActivationCheckpoint, ParametersGetGradientsWithoutAnInputThatNeedsOne) {
  Sequential model = block();
  const at::Tensor x = inputs();
  expect_same_step(
      model->parameters(), [&] { return model->forward(x).sum(); },
      [&] { return checkpoint(model, x).sum(); });
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(model, x).requires_grad());
}

TEST_F(ActivationCheckpoint, NestedSharedAndUsedOutside) {
  Sequential model = block();
  const at::Tensor x = inputs().requires_grad_(true);
  const auto twice = [&](const at::Tensor& y) { return model->forward(model->forward(y)); };
  const auto nested = [&](const at::Tensor& y) { return checkpoint(model, checkpoint(model, y)); };
  const auto outside = [&] { return model->forward(x).pow(2).sum(); };
  // A parameter's parts are added in another order when they come by other ways: not the same bits.
  const auto loss = [&](const at::Tensor& y) { return (y * y).sum() + outside(); };
  const Tensors leaves = with(model->parameters(), x);
  const Tensors want = step(leaves, [&] { return loss(twice(x)); });
  const Tensors got = step(leaves, [&] { return loss(checkpoint(nested, x)); });
  expect_same_bits(got.front(), want.front());
  expect_same_bits(got.back(), want.back());
  for (size_t k = 1; k + 1 < want.size(); ++k) expect_near(got[k], want[k], 1e-5);
}

TEST_F(ActivationCheckpoint, SeveralInputsAndOutputs) {
  const at::Tensor x = inputs(1).requires_grad_(true), y = inputs(2).requires_grad_(true);
  const at::Tensor mask = inputs(3).gt(0);
  const auto work = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& chosen) {
    return std::tuple(a.sin() * b, a.masked_fill(chosen, 0), a.argmax(1), b.exp());
  };
  // The last output is not used.
  const auto loss = [](const auto& results) {
    EXPECT_FALSE(std::get<2>(results).requires_grad());
    return std::get<0>(results).sum() + (std::get<1>(results) * 3).sum();
  };
  expect_same_step(
      {x, y}, [&] { return loss(work(x, y, mask)); },
      [&] { return loss(checkpoint(work, x, y, mask)); });
  const auto list = [](const at::Tensor& a) { return Tensors{a * 2, a}; };
  expect_same_step(
      {x}, [&] { return list(x)[0].sum() + list(x)[1].sum(); },
      [&] { return checkpoint(list, x)[0].sum() + checkpoint(list, x)[1].sum(); });
}

TEST_F(ActivationCheckpoint, GraphsThatAreKeptMayGoBackTwice) {
  Sequential model = block();
  const at::Tensor x = inputs();
  const auto twice = [](const at::Tensor& loss) {
    loss.backward({}, /*retain_graph=*/true);
    return loss;
  };
  expect_same_step(
      model->parameters(), [&] { return twice(model->forward(x).sum()); },
      [&] { return twice(checkpoint(model, x).sum()); });
}

class Bf16 {
 public:
  Bf16() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Bf16() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
};

TEST_F(ActivationCheckpoint, AutocastIsThatOfTheFirstRun) {
  Sequential model = block();
  const at::Tensor x = inputs();
  const auto rounded = [](const auto& work) {
    const Bf16 scope;
    const at::Tensor y = work();
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return y.to(at::kFloat).sum();
  };
  expect_same_step(
      model->parameters(), [&] { return rounded([&] { return model->forward(x); }); },
      [&] { return rounded([&] { return checkpoint(model, x); }); });
  // Backward within the scope, and the weights once more outside of the part: what autocast has
  // rounded in the first run is not what it needs then.
  for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
  const Bf16 scope;
  const at::Tensor part = checkpoint(model, x);
  const at::Tensor outside = model->forward(x);
  outside.sum().backward();
  for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().defined());
  for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
  part.sum().backward();
  for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

// Counts the bytes that tensors hold, while it lives.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 255); }
  ~CountingAllocator() override { c10::SetCPUAllocator(before_, 255); }
  c10::DataPtr allocate(size_t bytes) override {
    auto* const block = new Block{before_->allocate(bytes), live_, static_cast<int64_t>(bytes)};
    *live_ += block->bytes;
    return {block->memory.get(), block, release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  int64_t live() const { return *live_; }

 private:
  struct Block {
    c10::DataPtr memory;
    std::shared_ptr<int64_t> live;
    int64_t bytes;
  };
  static void release(void* context) {
    auto* const block = static_cast<Block*>(context);
    *block->live -= block->bytes;
    delete block;
  }
  c10::Allocator* before_;
  const std::shared_ptr<int64_t> live_ = std::make_shared<int64_t>(0);  // gradients live longer
};

TEST_F(ActivationCheckpoint, MemoryUntilBackwardIsThatOfTheInputs) {
  const auto part = [](const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < 10; ++i) y = (y.sin() * 0.9).exp();
    return y;
  };
  const at::Tensor x = at::ones({1000}).requires_grad_(true);
  const auto bytes_held = [](const std::function<at::Tensor()>& forward) {
    CountingAllocator counter;
    const at::Tensor y = forward();
    const int64_t held = counter.live();
    y.sum().backward();
    return held;
  };
  constexpr int64_t kTensor = 4000;
  const int64_t plain = bytes_held([&] { return part(part(part(x))); });
  x.mutable_grad().reset();
  const int64_t mine =
      bytes_held([&] { return checkpoint(part, checkpoint(part, checkpoint(part, x))); });
  EXPECT_GE(plain, 30 * kTensor);  // each exp() keeps its result
  EXPECT_LE(mine, 8 * kTensor);    // three results, and random states of 5 kB
  x.mutable_grad().reset();
}

TEST_F(ActivationCheckpoint, ExceptionsOfTheSecondRunLeaveEverythingInPlace) {
  bool fails = false;
  const auto work = [&](const at::Tensor& x) {
    if (fails) throw std::out_of_range("second run");
    return at::dropout(x, 0.5, true) * 2;
  };
  const at::Tensor x = inputs().requires_grad_(true);
  const at::Tensor y = checkpoint(work, x).sum();
  fails = true;
  const at::Tensor state = random_state();
  EXPECT_THROW(y.backward(), std::out_of_range);
  expect_same_bits(random_state(), state);
  EXPECT_FALSE(recomputing());
  fails = false;
  checkpoint(work, x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST_F(ActivationCheckpoint, WhatCanNotBeRightIsRefused) {
  Sequential model = block();
  const at::Tensor x = inputs().requires_grad_(true);
  const auto says = [](const char* text) {
    return AllOf(StartsWith("invalid argument: checkpoint(): "), HasSubstr(text));
  };
  EXPECT_THAT(error_of([&] { torch::autograd::grad({checkpoint(model, x).sum()}, {x}); }),
              says("autograd::grad()"));
  EXPECT_THAT(error_of([&] { checkpoint(model, x).sum().backward({}, {}, true); }),
              says("create_graph"));
  EXPECT_THAT(error_of([&] {
                checkpoint([](const at::Tensor& a) { return a.mul_(2); }, x.detach().clone());
              }),
              says("wrote to its input 0"));
  const at::Tensor outside = x * 2;
  EXPECT_THAT(error_of([&] {
                checkpoint([&](const at::Tensor& a) { return a * outside; }, x).sum().backward();
              }),
              says("MulBackward"));
  int calls = 0;
  const auto moody = [&](const at::Tensor& a) { return a.narrow(0, 0, ++calls); };
  EXPECT_THAT(error_of([&] { checkpoint(moody, x).sum().backward(); }),
              says("returned Float[1, 6], but in the second run Float[2, 6]"));
  EXPECT_THAT(error_of([&] { checkpoint(model, at::Tensor()); }), says("input 0 is undefined"));
  // LibTorch itself sees that an input was changed later.
  const at::Tensor changed = x * 1;
  const at::Tensor y = checkpoint(model, changed).sum();
  changed.detach().zero_();
  EXPECT_ANY_THROW(y.backward());
}

TEST_F(ActivationCheckpoint, BuffersChangeOnce) {
  Sequential mine(Linear(6, 3), torch::nn::BatchNorm1d(3));
  const auto want = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(mine->clone());
  const at::Tensor x = inputs();
  want->forward(x).pow(2).sum().backward();
  checkpoint({.buffers = mine->buffers()}, mine, x).pow(2).sum().backward();
  for (const auto& buffer : want->named_buffers()) {
    expect_same_bits(mine->named_buffers()[buffer.key()], buffer.value());
  }
  // SyncBatchNorm knows by itself.
  const auto run = [&](bool checkpointed) {
    SyncBatchNorm norm(6);
    norm->to(at::kDouble);
    const at::Tensor part = numbers({samples_of(rank()) + 1, 6}, rank()).requires_grad_(true);
    const at::Tensor y = checkpointed ? checkpoint(norm, part) : norm->forward(part);
    y.pow(3).sum().backward();
    return Tensors{part.grad(), norm->weight.grad(), norm->running_mean, norm->running_var,
                   norm->num_batches_tracked};
  };
  const Tensors plain = run(false), again = run(true);
  for (size_t i = 0; i < plain.size(); ++i) expect_near(again[i], plain[i], 1e-12);
}

// What the rest of the model has saved of the buffers is as it was.
TEST_F(ActivationCheckpoint, BuffersMayBeUsedOutsideToo) {
  for (const bool training : {false, true}) {
    const auto run = [&](bool plain) {
      torch::nn::BatchNorm1d norm(6);
      norm->train(training);
      const at::Tensor x = inputs().requires_grad_(true), y = norm->forward(x);
      const at::Tensor z = plain ? norm->forward(y) : checkpoint({norm->buffers()}, norm, y);
      z.pow(3).sum().backward();
      return Tensors{x.grad(), norm->weight.grad(), norm->running_mean, norm->running_var};
    };
    const Tensors plain = run(true), again = run(false);
    for (size_t i = 0; i < plain.size(); ++i) expect_same_bits(again[i], plain[i]);
  }
}

TEST_F(ActivationCheckpoint, BuffersThatTheFunctionResizesAreRefused) {
  at::Tensor other = at::zeros({1}), buffer = at::zeros({2});
  const at::Tensor x = at::ones({2}).requires_grad_(true);
  int runs = 0;
  const auto grow = [&](const at::Tensor& y) {
    other.add_(1);
    buffer.resize_({buffer.size(0) + 1});
    if (++runs == 4) throw std::runtime_error("of its own");
    return y * 2;
  };
  const at::Tensor first = checkpoint({.buffers = {other, buffer}}, grow, x).sum();
  EXPECT_THAT(error_of([&] { first.backward(); }), HasSubstr("resized buffer 1 from [3] to [4]"));
  EXPECT_EQ(other.item<float>(), 1);
  const at::Tensor second = checkpoint({.buffers = {other, buffer}}, grow, x).sum();
  EXPECT_THROW(second.backward(), std::runtime_error) << "and no other error, nor the end";
  EXPECT_EQ(other.item<float>(), 2);
}

// Within one backward(), the hooks see parts of a gradient from several backward passes.
TEST_F(ActivationCheckpoint, DistributedOptimizerReducesWhatIsRecomputed) {
  const auto train = [](bool checkpointed, bool outside) {
    Sequential first = block(1), second = block(2);
    Sequential all(Linear(6, 6));
    first->eval();  // dropout would differ from rank to rank
    second->eval();
    all->eval();
    all->to(at::kDouble);
    first->to(at::kDouble);
    second->to(at::kDouble);
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : all->parameters()) parameter.fill_(0.25);
    }
    std::vector<std::pair<std::string, at::Tensor>> pairs;
    for (const auto& [name, module] :
         {std::pair("first", first), std::pair("second", second), std::pair("all", all)}) {
      for (const auto& parameter : module->named_parameters()) {
        pairs.emplace_back(std::string(name) + "." + parameter.key(), parameter.value());
      }
    }
    std::vector<at::Tensor> parameters;
    for (const auto& pair : pairs) parameters.push_back(pair.second);
    DistributedOptimizer optimizer(torch::optim::SGD(parameters, 0.1), pairs,
                                   {.bucket_bytes = 256, .first_bucket_bytes = 256});
    Tensors seen;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      at::Tensor y = numbers({4, 6}, step + rank());
      if (checkpointed) {
        y = checkpoint(second, checkpoint(first, y));
        y = checkpoint(first, y);  // shared
      } else {
        y = first->forward(second->forward(first->forward(y)));
      }
      if (outside) y = all->forward(y);
      y.pow(2).mean().backward();
      seen.push_back(first->parameters()[0].grad().clone());  // reduced when backward() returns
      optimizer.step();
    }
    for (const at::Tensor& parameter : parameters) seen.push_back(parameter.detach());
    return seen;
  };
  for (const bool outside : {false, true}) {
    const Tensors want = train(false, outside), got = train(true, outside);
    for (size_t i = 0; i < want.size(); ++i) expect_near(got[i], want[i], 1e-11);
  }
}

}  // namespace
}  // namespace horon::activation_checkpoint_test
