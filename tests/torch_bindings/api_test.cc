// The public API in the forms in which programs write it: what compiles here stays callable.
#include <type_traits>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/support/mpi_main.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/horon.h"

namespace horon::api_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

double sum_of_ranks() { return size() * (size() - 1) / 2.0; }

// Options in their order: name, op or root, process_set, then the others. Designated initializers
// in another order don't compile.
TEST(Options, BeginAlike) {
  const ProcessSet all;
  const ReduceOp sum = ReduceOp::Sum;
  (void)AllreduceOptions{.name = "x", .op = sum, .process_set = all, .prescale = 2};
  (void)ReducescatterOptions{.name = "x", .op = sum, .process_set = all, .splits = {}};
  (void)GradientReducerOptions{.name = "x", .op = sum, .process_set = all, .bucket_bytes = 1};
  (void)BroadcastOptions{.name = "x", .root = 0, .process_set = all};
  (void)GatherOptions{.name = "x", .root = 0, .process_set = all};
  (void)ScatterOptions{.name = "x", .root = 0, .process_set = all, .splits = {}};
  (void)ObjectOptions{.name = "x", .root = 0, .process_set = all};
  (void)AllgatherOptions{.name = "x", .process_set = all};
  (void)AlltoallOptions{.name = "x", .process_set = all, .splits = {}};
  (void)SparseAllreduceOptions{.name = "x", .op = sum, .process_set = all};
  (void)FiniteCheckOptions{.name = "x", .process_set = all};
  (void)AgreementOptions{.name = "x", .process_set = all};
}

TEST(InPlace, TakesWhatIsConstOrTemporary) {
  at::Tensor parameter = at::ones({3}).requires_grad_(true);
  (parameter * rank()).sum().backward();
  const at::Tensor& gradient = parameter.grad();
  EXPECT_TRUE(allreduce_(parameter.grad(), {.op = ReduceOp::Sum}).is_same(gradient));
  EXPECT_EQ(gradient[0].item<double>(), sum_of_ranks());
  EXPECT_TRUE(allreduce_async_(parameter.grad()).wait().is_same(gradient));
  EXPECT_EQ(gradient[2].item<double>(), sum_of_ranks());

  const at::Tensor table = at::full({2, 2}, 1.0 * rank());
  EXPECT_EQ(broadcast_(table.select(0, 1), {.root = size() - 1})[0].item<double>(), size() - 1);
  EXPECT_EQ(table[0][0].item<double>(), rank());
  EXPECT_EQ(table[1][1].item<double>(), size() - 1);

  const std::vector<at::Tensor> group{parameter.grad(), table};
  grouped_broadcast_(group, {.root = 0});
  EXPECT_EQ(table[0][0].item<double>(), 0);
  grouped_allreduce_({parameter.grad(), table[0]}, {.op = ReduceOp::Sum});
  EXPECT_EQ(gradient[0].item<double>(), sum_of_ranks() * size());
  EXPECT_THAT(error_of([] { allreduce_(at::ones({2}).requires_grad_(true).grad()); }),
              HasSubstr("undefined"));
}

struct NetImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(2, 1));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(2));

  torch::Tensor forward(const torch::Tensor& x) { return linear(norm(x)); }
};
TORCH_MODULE(Net);

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& item : tensors) names.push_back(item.first);
  return names;
}

TEST(Named, FromWhateverHoldsTensors) {
  const Net model;
  const std::vector<std::string> parameters{"linear.weight", "linear.bias", "norm.weight",
                                            "norm.bias"};
  EXPECT_EQ(names_of(NamedTensors::parameters_of(*model)), parameters);
  EXPECT_EQ(names_of(model->named_parameters()), parameters);
  EXPECT_EQ(names_of(*model).size(), parameters.size() + 3);  // and the statistics of the norm
  EXPECT_EQ(names_of({{"a", at::ones({1})}, {"b", at::ones({1})}}).back(), "b");
  EXPECT_EQ(names_of(std::map<std::string, at::Tensor>{{"a", at::ones({1})}}).front(), "a");
}

// Every form trains: the gradients on all ranks end as their mean.
template <class Optimizer>
void expect_reduces(Optimizer& optimizer, Net& model) {
  optimizer.zero_grad();
  const at::Tensor x = at::full({4, 2}, 1.0 + rank()) * at::tensor({1., 2., 3., 5.}).view({4, 1});
  model->forward(x.to(at::kFloat)).sum().backward();
  optimizer.step();
  check_replicas_equal(model->named_parameters());
}

TEST(Named, OptimizersAndReducersTakeAModel) {
  Net model;
  broadcast_parameters(*model);
  {
    DistributedOptimizer optimizer(torch::optim::SGD(model->parameters(), 0.1), *model);
    expect_reduces(optimizer, model);
  }
  {
    DistributedOptimizer optimizer(torch::optim::Adam(model->parameters(), 0.1), *model,
                                   {.op = ReduceOp::Sum});
    static_assert(std::is_base_of_v<torch::optim::Adam, decltype(optimizer)>);
    expect_reduces(optimizer, model);
  }
  {
    DistributedOptimizer optimizer(torch::optim::SGD(model->parameters(), 0.1),
                                   model->named_parameters());
    expect_reduces(optimizer, model);
  }
  {
    DistributedOptimizer optimizer(torch::optim::SGD({model->linear->weight}, 0.1),
                                   {{"w", model->linear->weight}}, {});
    expect_reduces(optimizer, model);
  }
  // A reducer of a module reduces its parameters: its buffers are no gradients.
  std::vector<std::string> reduced;
  GradientReducer reducer(*model, {.op = ReduceOp::Sum});
  reducer.before_bucket([&](const BucketView& bucket) {
    reduced.insert(reduced.end(), bucket.parameters.begin(), bucket.parameters.end());
  });
  model->zero_grad();
  model->forward(at::ones({4, 2})).sum().backward();
  reducer.synchronize();
  EXPECT_EQ(reduced.size(), model->parameters().size());
}

TEST(Named, ANameThatStandsForTwoTensorsIsRefused) {
  const at::Tensor small = at::ones({2}).requires_grad_(true);
  const at::Tensor large = at::ones({5}).requires_grad_(true);
  const auto names_both = AllOf(StartsWith("invalid argument"), HasSubstr("called \"w\""),
                                HasSubstr("[2]"), HasSubstr("[5]"));
  EXPECT_THAT(error_of([&] { GradientReducer reducer({{"w", small}, {"w", large}}); }), names_both);
  EXPECT_THAT(error_of([&] {
                DistributedOptimizer optimizer(torch::optim::SGD({small, large}, 0.1),
                                               {{"w", small}, {"w", large}});
              }),
              names_both);
  EXPECT_THAT(error_of([&] { broadcast_parameters({{"w", small}, {"w", large}}); }), names_both);
  EXPECT_THAT(error_of([&] { check_replicas_equal({{"w", small}, {"w", large}}); }), names_both);
  GradientReducer reducer({{"w", small}, {"w", small}, {"tied", small}});
  EXPECT_THAT(error_of([&] { reducer.add_parameters({{"w", large}}); }), names_both);
  reducer.add_parameters({{"v", large}});
  (small.sum() + large.sum()).backward();
  reducer.synchronize();
  broadcast_parameters({{"w", small}, {"w", small}, {"tied", small}});
}

}  // namespace
}  // namespace horon::api_test
