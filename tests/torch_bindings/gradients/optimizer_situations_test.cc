// Programs of many kinds that train: adversaries, odd models, optimizers that are moved and saved.
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/gradients/toggle_scope.h"

namespace horon::optimizer_situations_test {
namespace {

namespace optim = ::torch::optim;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

::torch::nn::Sequential make_mlp(int64_t in, int64_t out, uint64_t seed) {
  ::torch::manual_seed(seed);
  ::torch::nn::Sequential mlp(::torch::nn::Linear(in, 8), ::torch::nn::Tanh(),
                              ::torch::nn::Linear(8, out));
  mlp->to(at::kDouble);
  return mlp;
}

// A generator and a discriminator, and one step of each. Real samples and noise are the same on
// every rank for the whole batch; a rank takes its shard.
struct Gan {
  ::torch::nn::Sequential generator = make_mlp(3, 4, 1);
  ::torch::nn::Sequential discriminator = make_mlp(4, 1, 2);

  at::Tensor judged(const at::Tensor& samples, double truth) {
    const at::Tensor verdict = discriminator->forward(samples);
    return ::torch::binary_cross_entropy_with_logits(verdict, at::full_like(verdict, truth));
  }

  template <class Optimizer>
  void pass_through(Optimizer& of_generator, Optimizer& of_discriminator, const at::Tensor& noise) {
    if (!toggles) return judged(generator->forward(noise), 1).backward();
    discriminator->zero_grad();
    {
      const ToggleScope only_generator(of_generator, {&of_discriminator});
      judged(generator->forward(noise), 1).backward();
    }
    for (const at::Tensor& parameter : discriminator->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
      EXPECT_TRUE(parameter.requires_grad());
    }
  }

  bool toggles = false;
  // If it is false, the discriminator's zero_grad() drops the gradients that the generator's pass
  // has left in the discriminator.
  template <class Optimizer>
  void step(Optimizer& of_generator, Optimizer& of_discriminator, const at::Tensor& real,
            const at::Tensor& noise) {
    discriminator->zero_grad();
    judged(real, 1).backward();
    judged(generator->forward(noise).detach(), 0).backward();
    of_discriminator.step();
    generator->zero_grad();
    pass_through(of_generator, of_discriminator, noise);
    of_generator.step();
  }
};

void compare_gan(ReduceOp op, int64_t bucket_bytes, bool toggles = false) {
  const double rate = 0.05;
  const double sum = op == ReduceOp::Sum ? size() : 1;
  Gan alone, gan;
  gan.toggles = toggles;
  optim::SGD generator(alone.generator->parameters(), optim::SGDOptions(rate * sum));
  optim::SGD discriminator(alone.discriminator->parameters(), optim::SGDOptions(rate * sum));
  const GradientReducerOptions options{
      .op = op, .bucket_bytes = bucket_bytes, .first_bucket_bytes = bucket_bytes};
  using Distributed = DistributedOptimizer<optim::SGD>;
  Distributed own_generator(optim::SGD(gan.generator->parameters(), rate),
                            gan.generator->named_parameters(), options);
  Distributed own_discriminator(optim::SGD(gan.discriminator->parameters(), rate),
                                gan.discriminator->named_parameters(), options);
  for (int step = 0; step < 8; ++step) {
    auto random = at::make_generator<at::CPUGeneratorImpl>(step);
    const at::Tensor real = at::randn({kShard * size(), 4}, random, at::kDouble);
    const at::Tensor noise = at::randn({kShard * size(), 3}, random, at::kDouble);
    alone.step(generator, discriminator, real, noise);
    gan.step(own_generator, own_discriminator, real.narrow(0, kShard * rank(), kShard),
             noise.narrow(0, kShard * rank(), kShard));
  }
  expect_same_parameters(*gan.generator, *alone.generator, 1e-9);
  expect_same_parameters(*gan.discriminator, *alone.discriminator, 1e-9);
  expect_equal_on_all_ranks(*gan.generator);
  expect_equal_on_all_ranks(*gan.discriminator);
}

TEST(Situations, AdversariesNeedNoOption) {
  for (const int64_t bucket_bytes : {1, 1 << 20}) {
    compare_gan(ReduceOp::Average, bucket_bytes);
    compare_gan(ReduceOp::Sum, bucket_bytes);
    compare_gan(ReduceOp::Average, bucket_bytes, true);
  }
}

TEST(Situations, TenThousandTinyParameters) {
  constexpr int kCount = 10000;
  std::vector<at::Tensor> parameters;
  NamedTensors named;
  for (int i = 0; i < kCount; ++i) {
    parameters.push_back(at::ones({i % 3}).requires_grad_(true));
    named.emplace_back("p" + std::to_string(i), parameters.back());
  }
  DistributedOptimizer optimizer(optim::SGD(parameters, 1.0), named);
  EXPECT_EQ(optimizer.statistics().buckets, 1);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    (at::cat(parameters).sum() * (rank() + 1)).backward();
    optimizer.step();
  }
  const at::Tensor all = at::cat(parameters);
  EXPECT_EQ(all.numel(), kCount - 1);
  EXPECT_TRUE(at::allclose(all, at::full_like(all, 1 - (size() + 1.0))));
  EXPECT_EQ(optimizer.statistics().late_parts, 0);
}

TEST(Situations, OneParameterLargerThanAllBuckets) {
  const at::Tensor large = at::ones({5, 100000}).requires_grad_(true);
  const at::Tensor small = at::ones({3}).requires_grad_(true);
  DistributedOptimizer optimizer(optim::SGD({large, small}, 1.0),
                                 NamedTensors{{"large", large}, {"small", small}},
                                 {.bucket_bytes = 1000, .first_bucket_bytes = 10});
  EXPECT_EQ(optimizer.statistics().buckets, 2);
  ((large.sum() + small.sum()) * (rank() + 1)).backward();
  optimizer.step();
  const double want = 1 - (size() + 1) / 2.0;
  EXPECT_TRUE(at::allclose(large, at::full_like(large, want)));
  EXPECT_TRUE(at::allclose(small, at::full_like(small, want)));
}

TEST(Situations, ParameterIsFrozenAfterWrapping) {
  Net net = make_net(at::kDouble);
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), 0.1), net->named_parameters());
  const Batch shard = shard_of(batch_of(0, at::kDouble));
  for (const bool frozen : {false, true, false}) {
    net->hidden->weight.requires_grad_(!frozen);
    const at::Tensor before = net->hidden->weight.detach().clone();
    optimizer.zero_grad();
    loss_of(net, shard).backward();
    optimizer.step();
    EXPECT_EQ(before.equal(net->hidden->weight), frozen);
    EXPECT_EQ(net->hidden->weight.grad().defined(), !frozen);
  }
  expect_equal_on_all_ranks(*net);
}

TEST(Situations, GraphIsKeptForASecondLoss) {
  Net alone = make_net(at::kDouble), net = make_net(at::kDouble);
  optim::SGD plain(alone->parameters(), 0.1);
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), 0.1), net->named_parameters());
  const Batch whole = batch_of(0, at::kDouble);
  const auto backward = [](Net& model, const Batch& batch) {
    const at::Tensor features = model->forward(batch.images);
    features.square().mean().backward({}, /*retain_graph=*/true);
    features.mean().backward();
  };
  for (int step = 0; step < 3; ++step) {
    plain.zero_grad();
    backward(alone, whole);
    plain.step();
    optimizer.zero_grad();
    backward(net, shard_of(whole));
    optimizer.step();
  }
  expect_same_parameters(*net, *alone, 1e-9);
}

// The program may keep the tensor that .grad was, as without Horon, also where it is a view of a
// bucket.
TEST(Situations, GradientsKeptByTheProgram) {
  for (const Compression compression : {Compression::None, Compression::BFloat16}) {
    const at::Tensor w = at::ones({3}).requires_grad_(true), v = at::ones({2}).requires_grad_(true);
    DistributedOptimizer optimizer(optim::SGD({w, v}, 0.0), NamedTensors{{"w", w}, {"v", v}},
                                   {.compression = compression});
    std::vector<at::Tensor> kept_of_w, kept_of_v;
    for (int step = 1; step <= 4; ++step) {
      optimizer.zero_grad();
      // In the third step, rank 0 alone has a gradient of v; in the fourth nobody has.
      at::Tensor loss = w.sum() * step;
      if (step < 3 || (step == 3 && rank() == 0)) loss = loss + v.sum() * (2 * step);
      loss.backward();
      optimizer.synchronize();
      kept_of_w.push_back(w.grad());
      if (step < 3) kept_of_v.push_back(v.grad());
      optimizer.step();
    }
    for (int step = 1; step <= 4; ++step) {
      const auto at = static_cast<size_t>(step - 1);
      EXPECT_EQ(kept_of_w[at].sum().item<float>(), 3.0F * static_cast<float>(step));
    }
    for (size_t step = 1; step <= kept_of_v.size(); ++step) {
      EXPECT_EQ(kept_of_v[step - 1].sum().item<float>(), 4.0F * static_cast<float>(step));
    }
  }
}

// If the program keeps no gradient, nothing is copied, and .grad stays the same tensor.
TEST(Situations, GradientsNotKeptByTheProgram) {
  const at::Tensor w = at::ones({3}).requires_grad_(true);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), NamedTensors{{"w", w}});
  std::set<const c10::TensorImpl*> gradients;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    w.sum().backward();
    optimizer.step();
    gradients.insert(w.grad().unsafeGetTensorImpl());
  }
  EXPECT_EQ(gradients.size(), 1);
}

TEST(Situations, OptimizerIsMoved) {
  Net alone = make_net(at::kDouble), net = make_net(at::kDouble);
  optim::Adam plain(alone->parameters(), optim::AdamOptions(0.01));
  using Distributed = DistributedOptimizer<optim::Adam>;
  Distributed first(optim::Adam(net->parameters(), optim::AdamOptions(0.01)),
                    net->named_parameters());
  std::optional<Distributed> second;
  for (int step = 0; step < 4; ++step) {
    const Batch whole = batch_of(step, at::kDouble);
    plain.zero_grad();
    loss_of(alone, whole).backward();
    plain.step();
    net->zero_grad();
    loss_of(net, shard_of(whole)).backward();
    if (step == 1) second.emplace(std::move(first));  // with buckets in flight
    (step == 0 ? first : *second).step();
  }
  expect_same_parameters(*net, *alone, 1e-9);
}

// One optimizer saves and another loads, each distributed or plain: all go on alike.
template <class Opt, class Options>
void save_and_load(const Options& options) {
  using Distributed = DistributedOptimizer<Opt>;
  const auto one_step = [](Net& net, optim::Optimizer& optimizer, int step) {
    net->zero_grad();
    loss_of(net, batch_of(step, at::kDouble)).backward();  // the whole batch on every rank
    optimizer.step();
  };
  Net net = make_net(at::kDouble);
  Distributed optimizer(Opt(net->parameters(), options), net->named_parameters());
  for (int step = 0; step < 3; ++step) one_step(net, optimizer, step);
  std::stringstream model, once, twice;
  ::torch::save(net, model);
  ::torch::save(optimizer, once);
  ::torch::save(optimizer, twice);

  Net plain_net = make_net(at::kDouble), other_net = make_net(at::kDouble);
  ::torch::load(plain_net, model);
  model.seekg(0);
  ::torch::load(other_net, model);
  Opt plain(plain_net->parameters(), options);
  ::torch::load(plain, once);
  Distributed other(Opt(other_net->parameters(), options), other_net->named_parameters());
  ::torch::load(other, twice);
  for (int step = 3; step < 6; ++step) {
    one_step(net, optimizer, step);
    one_step(plain_net, plain, step);
    one_step(other_net, other, step);
  }
  expect_same_parameters(*plain_net, *net, 1e-12);
  expect_same_parameters(*other_net, *net, 1e-12);
}

TEST(Situations, SavedAndLoaded) {
  save_and_load<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9));
  save_and_load<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true));
  save_and_load<optim::AdamW>(optim::AdamWOptions(0.01));
  save_and_load<optim::Adagrad>(optim::AdagradOptions(0.05));
  save_and_load<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5));
}

// LibTorch can't write the state of LBFGS; the error says so, and the optimizer works on.
TEST(Situations, LbfgsIsNotSavedAfterAStep) {
  Net net = make_net(at::kDouble);
  DistributedOptimizer optimizer(
      optim::LBFGS(net->parameters(), optim::LBFGSOptions(0.5).max_iter(4)),
      net->named_parameters());
  std::stringstream archive;
  ::torch::save(optimizer, archive);
  const auto step = [&] {
    optimizer.step([&] {
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(net, shard_of(batch_of(0, at::kDouble)));
      loss.backward();
      return loss;
    });
  };
  step();
  EXPECT_THAT(error_of([&] { ::torch::save(optimizer, archive); }),
              AllOf(StartsWith(kInvalid), HasSubstr("LBFGS"), HasSubstr("save()")));
  step();
  expect_equal_on_all_ranks(*net);
}

// An optimizer of the program's: the sign of the gradient, with a state that may have a save().
struct SignState : optim::OptimizerCloneableParamState<SignState> {
  int64_t steps = 0;
};

class Sign : public optim::Optimizer {
 public:
  Sign(std::vector<at::Tensor> parameters, double rate)
      : Optimizer({optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<optim::SGDOptions>(rate)) {}

  at::Tensor step(LossClosure closure = nullptr) override {
    const at::NoGradGuard no_grad;
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode grad(true);
      loss = closure();
    }
    for (at::Tensor& parameter : param_groups_[0].params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = state_[parameter.unsafeGetTensorImpl()];
      if (state == nullptr) state = std::make_unique<SignState>();
      ++static_cast<SignState&>(*state).steps;
      parameter.sub_(parameter.grad().sign(), param_groups_[0].options().get_lr());
    }
    return loss;
  }
};

class SavedSign : public Sign {
 public:
  using Sign::Sign;
  void save(::torch::serialize::OutputArchive& archive) const override {
    archive.write("rate", at::scalar_tensor(param_groups()[0].options().get_lr()), true);
  }
};

TEST(Situations, OptimizerOfTheProgram) {
  Net alone = make_net(at::kDouble), net = make_net(at::kDouble);
  Sign plain(alone->parameters(), 0.01);
  DistributedOptimizer optimizer(Sign(net->parameters(), 0.01), net->named_parameters());
  std::stringstream archive;
  ::torch::save(optimizer, archive);  // it has no state yet
  for (int step = 0; step < 5; ++step) {
    const Batch whole = batch_of(step, at::kDouble);
    plain.zero_grad();
    loss_of(alone, whole).backward();
    plain.step();
    optimizer.zero_grad();
    optimizer.step([&] {
      const at::Tensor loss = loss_of(net, shard_of(whole));
      loss.backward();
      return loss;
    });
  }
  expect_same_parameters(*net, *alone, 1e-9);
  expect_equal_on_all_ranks(*net);
  EXPECT_THAT(error_of([&] { ::torch::save(optimizer, archive); }),
              AllOf(StartsWith(kInvalid), HasSubstr("Sign"), HasSubstr("no save()")));

  Net other = make_net(at::kDouble);
  DistributedOptimizer saved(SavedSign(other->parameters(), 0.01), other->named_parameters());
  loss_of(other, shard_of(batch_of(0, at::kDouble))).backward();
  saved.step();
  std::stringstream full;
  ::torch::save(saved, full);
  EXPECT_GT(full.str().size(), 0u);
}

}  // namespace
}  // namespace horon::optimizer_situations_test
