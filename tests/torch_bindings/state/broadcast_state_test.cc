// After a broadcast every rank holds what the root held, bit by bit, whatever it held before.
#include "horon/torch_bindings/state/broadcast_state.h"

#include <map>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/state/optimizer_state.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon::broadcast_state_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

bool last_of_several() { return size() > 1 && rank() == size() - 1; }

struct NetImpl : torch::nn::Module {
  NetImpl() {
    const torch::NoGradGuard no_grad;
    // A layout of its own, and on every rank another.
    if (rank() % 2 == 1)
      conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    norm->running_mean.fill_(rank());
    norm->num_batches_tracked.fill_(rank() + 5);
    for (at::Tensor& p : parameters()) p.fill_(0.5 * rank() + 1);
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(3, 4, 3));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(4));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 4));
  torch::nn::Linear tied = register_module("tied", torch::nn::Linear(head));
  at::Tensor empty = register_buffer("empty", torch::ones({0, 3}));
  at::Tensor half = register_parameter("half", torch::ones({3}, torch::kBFloat16));
};
TORCH_MODULE(Net);

void expect_values_of(const torch::nn::Module& module, int root) {
  for (const auto& item : module.named_parameters()) {
    EXPECT_TRUE(item.value().eq(0.5 * root + 1).all().item<bool>()) << item.key();
  }
}

TEST(BroadcastParameters, ModuleWithBuffersFromAnyRoot) {
  for (int root = 0; root < size(); ++root) {
    Net net;
    broadcast_parameters(*net, root);
    expect_values_of(*net, root);
    EXPECT_TRUE(net->norm->running_mean.eq(root).all().item<bool>());
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), root + 5);
    EXPECT_TRUE(net->head->weight.requires_grad());
  }
}

TEST(BroadcastParameters, NamedLists) {
  Net net;
  broadcast_parameters(net->named_parameters(), size() - 1);
  expect_values_of(*net, size() - 1);
  EXPECT_TRUE(net->norm->running_mean.eq(rank()).all().item<bool>());
  at::Tensor a = torch::full({2}, double(rank())),
             b = torch::full({}, double(rank()), torch::kLong);
  broadcast_parameters({{"a", a}, {"b", b}, {"a again", a}}, 0);
  EXPECT_EQ(a.sum().item<double>(), 0);
  EXPECT_EQ(b.item<int64_t>(), 0);
  broadcast_parameters(std::vector<std::pair<std::string, at::Tensor>>(), 0);
}

TEST(BroadcastParameters, PlainListsAndMaps) {
  const auto filled = [] { return torch::full({2, 2}, double(rank())); };
  const int root = size() - 1;
  const std::vector<at::Tensor> list{filled(), filled()};
  broadcast_parameters(list, root);
  const at::Tensor a = filled();
  const at::Tensor b = filled();
  broadcast_parameters({a, b}, root);
  const std::map<std::string, at::Tensor> map{{"c", filled()}, {"d", filled()}};
  broadcast_parameters(map, root);
  for (const at::Tensor& tensor : {list[0], list[1], a, b, map.at("c"), map.at("d")}) {
    EXPECT_TRUE(tensor.eq(root).all().item<bool>()) << tensor;
  }
  EXPECT_EQ(NamedTensors(list).begin()->first, "0");
}

TEST(BroadcastParameters, WithinProcessSets) {
  const ProcessSet set = split_process_set(rank() % 2);
  const int root = set.ranks().back();
  Net net;
  broadcast_parameters(*net, root, set);
  expect_values_of(*net, root);
  EXPECT_TRUE(net->norm->running_mean.eq(root).all().item<bool>());
  if (size() > 1) {
    EXPECT_THAT(error_of([&] { broadcast_parameters(*net, 1 - rank() % 2, set); }),
                AllOf(StartsWith("invalid argument"), HasSubstr("root")));
  }
  barrier();
}

TEST(BroadcastParameters, DifferencesAreNamedOnEveryRank) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  const at::Tensor x = torch::ones({2, 3});
  const auto error = [](const Named& common, const Named& last) {
    return error_of([&] { broadcast_parameters(last_of_several() ? last : common, 0); });
  };
  const std::string last = "rank " + std::to_string(size() - 1);
  const auto names = [&](const char* one, const char* other) {
    return AllOf(StartsWith("mismatch"), HasSubstr("rank 0"), HasSubstr(last), HasSubstr(one),
                 HasSubstr(other));
  };
  EXPECT_THAT(error({{"x", x}}, {{"x", x.t()}}), names("[2, 3]", "[3, 2]"));
  EXPECT_THAT(error({{"x", x}}, {{"x", x.to(torch::kDouble)}}), names("float32", "float64"));
  EXPECT_THAT(error({{"x", x}}, {{"y", x}}), names("\"x\"", "\"y\""));
  EXPECT_THAT(error({{"x", x}}, {{"x", x}, {"more", x.clone()}}),
              names("tensor \"more\"", "does not have"));
  EXPECT_THAT(error({{"x", x}, {"z", x}}, {{"x", x}, {"z", x.clone()}}),
              names("tied to x", "[2, 3]"));
  EXPECT_THAT(error({{"x", x}}, {{"x", at::Tensor()}}),
              AllOf(StartsWith("invalid argument"), HasSubstr("\"x\"")));
  EXPECT_THAT(error_of([&] {
                broadcast_parameters({{"x", x}}, last_of_several() ? 1 : 0);
              }),
              StartsWith("mismatch"));
  EXPECT_THAT(error_of([&] {
                broadcast_parameters({{"x", x}}, size());
              }),
              StartsWith("invalid argument"));
  // One rank alone gives a root that can't be.
  EXPECT_THAT(error_of([&] {
                broadcast_parameters({{"x", x}}, last_of_several() ? size() : 0);
              }),
              AllOf(StartsWith("invalid argument"), HasSubstr("on " + last), HasSubstr("root")));
  EXPECT_EQ(allreduce(x, {.op = ReduceOp::Sum}).sum().item<double>(), 6 * size());
}

std::vector<at::Tensor> make_parameters() {
  std::vector<at::Tensor> parameters{torch::full({3, 2}, 1.0), torch::full({}, 2.0),
                                     torch::full({4}, 3.0)};
  for (at::Tensor& p : parameters) p.requires_grad_(true);
  return parameters;
}

// One step with gradients that all ranks share; the last parameter never gets one.
void step(torch::optim::Optimizer& optimizer, double gradient) {
  const auto& parameters = optimizer.param_groups()[0].params();
  for (size_t i = 0; i + 1 < parameters.size(); ++i) {
    parameters[i].mutable_grad() = torch::full_like(parameters[i], gradient);
  }
  optimizer.step([&] { return torch::ones({}); });
}

void expect_equal_on_all_ranks(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor rows = allgather(tensor.detach().reshape({1, -1}));
    EXPECT_TRUE(at::equal(rows, rows.slice(0, 0, 1).expand_as(rows))) << rows;
  }
}

template <class Optimizer, class Options>
void continue_alike(const Options& base, int root, int steps_of_root) {
  auto parameters = make_parameters();
  Options options(base);
  options.lr(base.lr() * (rank() + 1));
  Optimizer optimizer(parameters, options);
  const int steps = rank() == root ? steps_of_root : 2 + rank();
  for (int i = 0; i < steps; ++i) step(optimizer, 0.1 * (rank() + i + 1));
  broadcast_parameters({{"p0", parameters[0]}, {"p1", parameters[1]}, {"p2", parameters[2]}}, root);
  broadcast_optimizer_state(optimizer, root);
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), base.lr() * (root + 1));
  for (int i = 0; i < 3; ++i) step(optimizer, 0.3 - 0.1 * i);
  expect_equal_on_all_ranks(parameters);
}

TEST(BroadcastOptimizerState, EveryOptimizerGoesOnAlike) {
  for (const int root : {0, size() - 1}) {
    for (const int steps : {0, 3}) {
      continue_alike<torch::optim::SGD>(torch::optim::SGDOptions(0.1), root, steps);
      continue_alike<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), root, steps);
      continue_alike<torch::optim::Adam>(torch::optim::AdamOptions(0.1), root, steps);
      continue_alike<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true), root, steps);
      continue_alike<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1), root, steps);
      continue_alike<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1), root, steps);
      continue_alike<torch::optim::RMSprop>(
          torch::optim::RMSpropOptions(0.1).momentum(0.9).centered(true), root, steps);
    }
  }
}

TEST(BroadcastOptimizerState, StateThatTheRootHasNotIsDropped) {
  auto parameters = make_parameters();
  torch::optim::Adam optimizer(parameters, torch::optim::AdamOptions(0.1));
  if (rank() != 0) step(optimizer, 1.0);
  broadcast_optimizer_state(optimizer, 0);
  EXPECT_TRUE(optimizer.state().empty());
}

torch::optim::LBFGSParamState lbfgs_state(torch::optim::LBFGS& optimizer) {
  if (optimizer.state().empty()) return {};
  return static_cast<torch::optim::LBFGSParamState&>(*optimizer.state().begin()->second);
}

TEST(BroadcastOptimizerState, TwoGroupsWithOptionsOfTheirOwn) {
  auto parameters = make_parameters();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{parameters[0]},
                      std::make_unique<torch::optim::AdamOptions>(0.1 * (rank() + 1)));
  groups.emplace_back(std::vector<at::Tensor>{parameters[1], parameters[2]},
                      std::make_unique<torch::optim::AdamOptions>(
                          torch::optim::AdamOptions(0.2).weight_decay(rank()).betas({0.5, 0.6})));
  torch::optim::Adam optimizer(groups, torch::optim::AdamOptions(0.3));
  const int root = size() - 1;
  if (rank() == root) {
    for (at::Tensor& p : parameters) p.mutable_grad() = torch::ones_like(p);
    optimizer.step();
  }
  broadcast_parameters(parameters, root);
  broadcast_optimizer_state(optimizer, root);
  using Options = torch::optim::AdamOptions;
  const auto& first = static_cast<Options&>(optimizer.param_groups()[0].options());
  const auto& second = static_cast<Options&>(optimizer.param_groups()[1].options());
  EXPECT_DOUBLE_EQ(first.lr(), 0.1 * (root + 1));
  EXPECT_DOUBLE_EQ(second.weight_decay(), root);
  EXPECT_EQ(second.betas(), std::make_tuple(0.5, 0.6));
  EXPECT_EQ(optimizer.state().size(), 3);
  for (at::Tensor& p : parameters) p.mutable_grad() = torch::full_like(p, 0.5);
  optimizer.step();
  expect_equal_on_all_ranks(parameters);
}

// What arrives is what torch::save and torch::load would have brought, and another step of the
// root's goes on as before.
TEST(BroadcastOptimizerState, StateKeepsDtypeStridesAndBits) {
  const at::Tensor weight = torch::full({2, 3, 4, 5}, 0.5, torch::kDouble)
                                .contiguous(at::MemoryFormat::ChannelsLast)
                                .requires_grad_(true);
  torch::optim::RMSprop optimizer({weight}, torch::optim::RMSpropOptions(0.1).momentum(0.9));
  if (rank() == 0) {
    weight.mutable_grad() = torch::rand_like(weight);
    optimizer.step();
  }
  broadcast_optimizer_state(optimizer, 0);
  const auto& state = static_cast<torch::optim::RMSpropParamState&>(
      *optimizer.state().at(weight.unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 1);
  EXPECT_FALSE(state.grad_avg().defined());
  for (const at::Tensor& tensor : {state.square_avg(), state.momentum_buffer()}) {
    EXPECT_EQ(tensor.scalar_type(), at::kDouble);
    EXPECT_TRUE(tensor.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_FALSE(tensor.requires_grad());
  }
  check_replicas_equal({state.square_avg(), state.momentum_buffer()});
}

TEST(BroadcastOptimizerState, LargeStatesAreNotCopiedIntoOneBlob) {
  const at::Tensor weight = torch::zeros({1'000'000}).requires_grad_(true);
  torch::optim::Adam optimizer({weight}, torch::optim::AdamOptions(0.1));
  weight.mutable_grad() = torch::ones_like(weight);
  optimizer.step();
  const torch_detail::TakenApart apart = torch_detail::take_apart(optimizer);
  EXPECT_LT(apart.bytes.size(), 20'000);
  EXPECT_EQ(apart.tensors.size(), 2);
}

TEST(BroadcastOptimizerState, InDistributedOptimizersAndProcessSets) {
  auto parameters = make_parameters();
  const std::vector<std::pair<std::string, at::Tensor>> named{
      {"a", parameters[0]}, {"b", parameters[1]}, {"c", parameters[2]}};
  DistributedOptimizer optimizer(
      torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9)), named);
  step(optimizer, 1.0);
  auto& state = static_cast<torch::optim::SGDParamState&>(
      *optimizer.state().at(parameters[0].unsafeGetTensorImpl()));
  state.momentum_buffer().fill_(rank());
  const ProcessSet set = split_process_set(rank() % 2);
  const int root = set.ranks().back();
  broadcast_optimizer_state(optimizer, root, set);
  const auto& got = static_cast<torch::optim::SGDParamState&>(
      *optimizer.state().at(parameters[0].unsafeGetTensorImpl()));
  EXPECT_TRUE(got.momentum_buffer().eq(root).all().item<bool>()) << got.momentum_buffer();
  barrier();
}

// One that LibTorch itself can't save after a step.
TEST(BroadcastOptimizerState, LbfgsAfterAnyNumberOfSteps) {
  for (const char* search : {"", "strong_wolfe"}) {
    for (const int steps_of_root : {0, 1, 3}) {
      auto parameters = make_parameters();
      auto options = torch::optim::LBFGSOptions(0.1 * (rank() + 1)).max_iter(3);
      if (*search != '\0') options.line_search_fn(std::string(search));
      torch::optim::LBFGS optimizer(parameters, options);
      const auto closure = [&] {
        optimizer.zero_grad();
        at::Tensor loss = torch::zeros({});
        for (size_t i = 0; i < parameters.size(); ++i) {
          loss = loss + (parameters[i].pow(4) + parameters[i]).sum() * static_cast<double>(i + 1);
        }
        loss.backward();
        return loss;
      };
      const int root = size() - 1;
      const int steps = rank() == root ? steps_of_root : rank() % 3;
      for (int i = 0; i < steps; ++i) optimizer.step(closure);
      const torch::optim::LBFGSParamState before = lbfgs_state(optimizer);
      broadcast_parameters(parameters, root);
      broadcast_optimizer_state(optimizer, root);
      const torch::optim::LBFGSParamState after = lbfgs_state(optimizer);
      if (rank() == root && steps_of_root > 0) {
        EXPECT_TRUE(at::equal(before.d(), after.d()));
        EXPECT_EQ(before.n_iter(), after.n_iter());
      }
      EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1 * (root + 1));
      EXPECT_EQ(optimizer.state().size(), steps_of_root == 0 ? 0 : 1);
      for (int i = 0; i < 3; ++i) optimizer.step(closure);
      expect_equal_on_all_ranks(parameters);
    }
  }
}

// A user's own optimizer: the base class saves nothing.
class Plain : public torch::optim::Optimizer {
 public:
  explicit Plain(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure = nullptr) override {
    const at::Tensor& first = param_groups_[0].params()[0];
    state_[first.unsafeGetTensorImpl()] = std::make_unique<torch::optim::SGDParamState>();
    return {};
  }
};

TEST(BroadcastOptimizerState, StateThatIsNotSavedIsAnErrorOnEveryRank) {
  // Of the root, or of any other.
  for (const int guilty : {0, size() - 1}) {
    Plain optimizer(make_parameters());
    broadcast_optimizer_state(optimizer, 0);
    if (rank() == guilty) optimizer.step();
    EXPECT_THAT(error_of([&] { broadcast_optimizer_state(optimizer, 0); }),
                AllOf(StartsWith("invalid argument"), HasSubstr("Plain"), HasSubstr("save()")));
  }
  barrier();
}

// Derived from one of LibTorch's, with something more to save: its own save() and load() are used.
class Counting : public torch::optim::SGD {
 public:
  using SGD::SGD;
  int64_t count = rank();
  void save(torch::serialize::OutputArchive& archive) const override {
    SGD::save(archive);
    archive.write("count", c10::IValue(count));
  }
  void load(torch::serialize::InputArchive& archive) override {
    SGD::load(archive);
    c10::IValue value;
    archive.read("count", value);
    count = value.toInt();
  }
};

TEST(BroadcastOptimizerState, OwnOptimizersTravelAsTheySave) {
  auto parameters = make_parameters();
  Counting optimizer(parameters, torch::optim::SGDOptions(0.1 * (rank() + 1)).momentum(0.9));
  const int root = size() - 1;
  for (int i = 0; i < 2 * rank() + 1; ++i) step(optimizer, 0.5);
  broadcast_parameters(parameters, root);
  broadcast_optimizer_state(optimizer, root);
  EXPECT_EQ(optimizer.count, root);
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1 * (root + 1));
  step(optimizer, 0.25);
  expect_equal_on_all_ranks(parameters);
}

TEST(BroadcastOptimizerState, OtherTypesAndGroupsAreNamed) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  torch::optim::SGD sgd(make_parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::Adam adam(make_parameters(), torch::optim::AdamOptions(0.1));
  torch::optim::Optimizer& mine =
      last_of_several() ? static_cast<torch::optim::Optimizer&>(adam) : sgd;
  EXPECT_THAT(error_of([&] { broadcast_optimizer_state(mine, 0); }),
              AllOf(StartsWith("mismatch"), HasSubstr("SGD"), HasSubstr("Adam")));
  auto parameters = make_parameters();
  if (last_of_several()) parameters.pop_back();
  torch::optim::SGD smaller(parameters, torch::optim::SGDOptions(0.1));
  EXPECT_THAT(error_of([&] { broadcast_optimizer_state(smaller, 0); }),
              AllOf(StartsWith("mismatch"), HasSubstr("group of 3"), HasSubstr("group of 2")));
  parameters = make_parameters();  // state belongs to them by their places
  if (last_of_several()) std::swap(parameters.front(), parameters.back());
  torch::optim::SGD swapped(parameters, torch::optim::SGDOptions(0.1));
  EXPECT_THAT(error_of([&] { broadcast_optimizer_state(swapped, 0); }),
              AllOf(StartsWith("mismatch"), HasSubstr("parameter 0")));
}

}  // namespace
}  // namespace horon::broadcast_state_test
