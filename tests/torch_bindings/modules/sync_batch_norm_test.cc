// SyncBatchNorm against LibTorch's BatchNorm in one process that has all samples.
#include "horon/torch_bindings/modules/sync_batch_norm.h"

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/any.h>

#include "horon/tests/torch_bindings/modules/modules_support.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/objects.h"

namespace horon::sync_batch_norm_test {
namespace {

using namespace testing_support;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNormOptions;

at::Tensor sum_over_ranks(const at::Tensor& tensor) {
  return allreduce(tensor, {.op = ReduceOp::Sum});
}

struct Pass {
  at::Tensor output, input_gradient;
};

template <class Module>
Pass pass_of(Module& module, const at::Tensor& input, const at::Tensor& factors) {
  const at::Tensor x = input.detach().clone(input.suggest_memory_format()).requires_grad_(true);
  const at::Tensor y = module->forward(x);
  (y * factors).sum().backward();
  return {y.detach(), x.grad()};
}

// LibTorch's module that takes inputs of so many dimensions.
torch::nn::AnyModule oracle_for(int64_t dimensions, const BatchNormOptions& options) {
  if (dimensions <= 3) return torch::nn::AnyModule(torch::nn::BatchNorm1d(options));
  if (dimensions == 4) return torch::nn::AnyModule(BatchNorm2d(options));
  return torch::nn::AnyModule(torch::nn::BatchNorm3d(options));
}

struct AsModule {
  torch::nn::AnyModule module;
  AsModule* operator->() { return this; }
  at::Tensor forward(const at::Tensor& x) { return module.forward(x); }
};

// Everything that the two have in common, after some steps with other samples in each.
void expect_equal_to_oracle(const std::vector<int64_t>& sample, const BatchNormOptions& options,
                            at::ScalarType type, double tolerance,
                            at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  std::vector<int64_t> shape{all_samples()};
  shape.insert(shape.end(), sample.begin(), sample.end());
  SyncBatchNorm mine(options);
  AsModule oracle{oracle_for(static_cast<int64_t>(shape.size()), options)};
  const auto whole = oracle.module.ptr();
  mine->to(type);
  whole->to(type);
  if (options.affine()) {
    const at::NoGradGuard no_grad;
    for (torch::nn::Module* module : {static_cast<torch::nn::Module*>(mine.get()), whole.get()}) {
      module->named_parameters()["weight"].copy_(numbers({sample[0]}, 0.3) + 2);
      module->named_parameters()["bias"].copy_(numbers({sample[0]}, 0.7));
    }
  }
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = (numbers(shape, step, type) + 5).contiguous(format);
    const at::Tensor factors = numbers(shape, step + 0.5, type);
    const Pass got = pass_of(mine, my_part(x), my_part(factors));
    const Pass want = pass_of(oracle, x, factors);
    expect_near(got.output, my_part(want.output), tolerance);
    expect_near(got.input_gradient, my_part(want.input_gradient), tolerance);
    EXPECT_EQ(got.output.scalar_type(), type);
    if (samples_of(rank()) > 1) {
      EXPECT_EQ(got.output.suggest_memory_format(), format);
    }
  }
  for (const auto& parameter : whole->named_parameters()) {
    const at::Tensor gradient = mine->named_parameters()[parameter.key()].grad();
    expect_near(sum_over_ranks(gradient), parameter.value().grad(), tolerance * 10);
  }
  for (const auto& buffer : whole->named_buffers()) {
    expect_near(mine->named_buffers()[buffer.key()], buffer.value(), tolerance);
  }
  mine->eval();
  whole->eval();
  const at::Tensor x = numbers(shape, 9, type);
  if (options.track_running_stats()) {  // without them eval takes those of the batch: of this rank
    expect_near(mine->forward(my_part(x)), my_part(oracle.forward(x)), tolerance);
  }
}

class SyncBatchNormTest : public testing::Test {
 protected:
  void TearDown() override { barrier(); }
};

TEST_F(SyncBatchNormTest, EqualsOneProcessWithAllSamples) {
  const std::vector<std::vector<int64_t>> samples{{3}, {2, 4}, {3, 2, 3}, {2, 2, 1, 3}};
  for (const auto& sample : samples) {
    expect_equal_to_oracle(sample, BatchNormOptions(sample[0]), at::kDouble, 1e-10);
    expect_equal_to_oracle(sample, BatchNormOptions(sample[0]), at::kFloat, 2e-4);
  }
}

TEST_F(SyncBatchNormTest, OptionsOfBatchNorm) {
  const std::vector<int64_t> sample{3, 2, 2};
  expect_equal_to_oracle(sample, BatchNormOptions(3).affine(false), at::kDouble, 1e-10);
  expect_equal_to_oracle(sample, BatchNormOptions(3).eps(0.3).momentum(0.4), at::kDouble, 1e-10);
  expect_equal_to_oracle(sample, BatchNormOptions(3).momentum(std::nullopt), at::kDouble, 1e-10);
  expect_equal_to_oracle(sample, BatchNormOptions(3).track_running_stats(false), at::kDouble,
                         1e-10);
  expect_equal_to_oracle({4, 3, 2}, BatchNormOptions(4), at::kDouble, 1e-10,
                         at::MemoryFormat::ChannelsLast);
}

// Statistics come in float32, so a variance that 16 bits could not hold beside its mean is right.
TEST_F(SyncBatchNormTest, SixteenBitInputsHaveStatisticsInFloat32) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor x = (numbers({all_samples(), 2, 4, 4}, 0.1) + 20).to(type);
    SyncBatchNorm mine(2);
    BatchNorm2d oracle(2);
    oracle->to(at::kDouble);
    const at::Tensor factors = numbers(x.sizes().vec(), 0.2).to(type);
    const Pass got = pass_of(mine, my_part(x), my_part(factors));
    const Pass want = pass_of(oracle, x.to(at::kDouble), factors.to(at::kDouble));
    EXPECT_EQ(got.output.scalar_type(), type);
    EXPECT_EQ(got.input_gradient.scalar_type(), type);
    expect_near(mine->running_mean, oracle->running_mean, 1e-5);
    expect_near(mine->running_var, oracle->running_var, 1e-5);
    expect_near(got.output, my_part(want.output), 2e-2);
    expect_near(got.input_gradient, my_part(want.input_gradient), 2e-2);
    expect_near(sum_over_ranks(mine->weight.grad()), oracle->weight.grad(), 1e-3);
  }
}

// Sums of squares would have no digit left.
TEST_F(SyncBatchNormTest, LargeMeansDoNotCancel) {
  const at::Tensor x = (numbers({all_samples(), 2, 50}, 0.4) + 30000).to(at::kFloat);
  SyncBatchNorm mine(BatchNormOptions(2).momentum(1.0));
  mine->forward(my_part(x));
  const at::Tensor exact = x.to(at::kDouble).var(at::IntArrayRef({0, 2}));
  expect_near(mine->running_var, exact, 1e-4);
}

TEST_F(SyncBatchNormTest, SingleValueIsRefusedOnAllRanks) {
  SyncBatchNorm mine(3);
  mine->collective_name = "single";
  const at::Tensor x = at::ones({rank() == size() - 1 ? 1 : 0, 3});
  EXPECT_THAT(error_of([&] { mine->forward(x); }),
              AllOf(StartsWith("invalid argument"), HasSubstr("\"single\""),
                    HasSubstr("one value per channel")));
  EXPECT_EQ(mine->num_batches_tracked.item<int64_t>(), 0);
  mine->forward(at::ones({2, 3}));
}

TEST_F(SyncBatchNormTest, NoSamplesOnAnyRank) {
  SyncBatchNorm mine(3);
  const Pass got = pass_of(mine, at::ones({0, 3, 2}), at::ones({0, 3, 2}));
  EXPECT_EQ(got.output.sizes(), at::IntArrayRef({0, 3, 2}));
  EXPECT_EQ(got.input_gradient.sizes(), at::IntArrayRef({0, 3, 2}));
  EXPECT_EQ(mine->num_batches_tracked.item<int64_t>(), 0);
  expect_near(mine->weight.grad(), at::zeros({3}), 0);
  expect_near(mine->running_var, at::ones({3}), 0);
}

TEST_F(SyncBatchNormTest, ProcessSets) {
  const ProcessSet mine = add_even_odd_process_set();
  SyncBatchNorm synced(BatchNormOptions(2), mine);
  BatchNorm2d oracle(2);
  synced->to(at::kDouble);
  oracle->to(at::kDouble);
  const auto of_rank = [](int r) { return numbers({2, 2, 3, 3}, r); };
  std::vector<at::Tensor> parts;
  for (const int r : mine.ranks()) parts.push_back(of_rank(r));
  const at::Tensor whole = at::cat(parts);
  const Pass got = pass_of(synced, of_rank(rank()), of_rank(rank() + 7));
  std::vector<at::Tensor> factors;
  for (const int r : mine.ranks()) factors.push_back(of_rank(r + 7));
  const Pass want = pass_of(oracle, whole, at::cat(factors));
  expect_near(got.output, want.output.narrow(0, 2 * mine.rank(), 2), 1e-10);
  expect_near(got.input_gradient, want.input_gradient.narrow(0, 2 * mine.rank(), 2), 1e-10);
  expect_near(synced->running_var, oracle->running_var, 1e-10);
}

TEST_F(SyncBatchNormTest, OneModuleTwiceInOneForward) {
  const auto step = [](auto& module, const at::Tensor& given) {
    const at::Tensor x = given.detach().clone().requires_grad_(true);
    const at::Tensor y = module->forward(module->forward(x).tanh() * 3);
    y.pow(3).sum().backward();
    return x.grad();
  };
  SyncBatchNorm mine(2);
  BatchNorm2d oracle(2);
  mine->to(at::kDouble);
  oracle->to(at::kDouble);
  const at::Tensor x = numbers({all_samples(), 2, 2, 2}, 0.6);
  for (int i = 0; i < 2; ++i) {
    expect_near(step(mine, my_part(x)), my_part(step(oracle, x)), 1e-10);
    expect_near(mine->running_mean, oracle->running_mean, 1e-10);
  }
  EXPECT_EQ(mine->collective_name.empty(), size() == 1);
}

// Two modules of one name would share their sums.
TEST_F(SyncBatchNormTest, ACloneHasANameOfItsOwn) {
  if (size() == 1) return;
  SyncBatchNorm mine(2);
  mine->forward(numbers({3, 2}, rank(), at::kFloat));
  const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(mine->clone());
  copy->forward(numbers({3, 2}, rank(), at::kFloat));
  EXPECT_NE(copy->collective_name, mine->collective_name);
}

// Each call has its own sums: they must not be added up across calls.
TEST_F(SyncBatchNormTest, RankThatUsesOneOfTwoOutputsIsNamed) {
  if (size() == 1) return;
  SyncBatchNorm mine(2);
  mine->collective_name = "twice";
  const at::Tensor x = numbers({3, 2}, rank(), at::kFloat).requires_grad_(true);
  const at::Tensor first = mine->forward(x), second = mine->forward(x);
  const bool last = rank() == size() - 1;
  const at::Tensor loss = last ? first.sum() : first.sum() + second.sum();
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              AllOf(StartsWith("mismatch"), HasSubstr("\"twice\""), HasSubstr("through call 1"),
                    HasSubstr("through call 2"), HasSubstr("0 * output.sum()")));
}

TEST_F(SyncBatchNormTest, GoesOnAfterAnUnevenEpochAndJoin) {
  SyncBatchNorm mine{BatchNormOptions(2)};
  mine->to(at::kDouble);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int step = 0; step < 2 + rank(); ++step) {
      pass_of(mine, numbers({3, 2}, step + rank()), numbers({3, 2}, 0.5));
    }
    join();
  }
  if (size() == 1) return;
  const at::Tensor x = numbers({3, 2}, 1).requires_grad_(true);
  const at::Tensor first = mine->forward(x);
  const at::Tensor second = mine->forward(x);
  EXPECT_THAT(error_of([&] { (rank() == 0 ? first : second).sum().backward(); }),
              AllOf(HasSubstr("rank 0 through call 1"), HasSubstr("through call 2")));
}

// Both names are in use from then on.
TEST_F(SyncBatchNormTest, ModuleOfTheTimeAfterAJoinHasANameOfItsOwn) {
  if (size() == 1) return;
  SyncBatchNorm before{BatchNormOptions(2)};
  SyncBatchNorm after{BatchNormOptions(3)};
  before->forward(numbers({3, 2}, 1));
  join();
  after->forward(numbers({3, 3}, 1));
  EXPECT_NE(before->collective_name, after->collective_name);
}

// Rank 0 has no batch for the first module before a join(), and none for the third one.
TEST_F(SyncBatchNormTest, ModulesThatSomeRanksHaveNotCalledGetTheSameNamesAfterAJoin) {
  if (size() == 1) return;
  SyncBatchNorm first{BatchNormOptions(2)}, second{BatchNormOptions(2)}, third{BatchNormOptions(2)};
  const at::Tensor ones = at::ones({3, 2}), x = numbers({3, 2}, rank(), at::kFloat);
  if (rank() != 0) pass_of(first, x, ones);
  join();
  const auto expect_same_name = [](const SyncBatchNorm& module) {
    const std::vector<std::string> names = allgather_object(module->collective_name);
    EXPECT_THAT(names, testing::Each(names.front()));
    return names.front();
  };
  EXPECT_EQ(second->collective_name, "");
  pass_of(second, x, ones);
  const std::string name = expect_same_name(second);
  if (rank() != 0) pass_of(third, x, ones);
  join();
  pass_of(third, x, ones);
  pass_of(first, x, ones);
  pass_of(second, x, ones);
  EXPECT_EQ(expect_same_name(second), name) << "all ranks have called it before";
  const std::string of_third = expect_same_name(third), of_first = expect_same_name(first);
  EXPECT_EQ((std::set<std::string>{name, of_third, of_first}).size(), 3u);
}

TEST_F(SyncBatchNormTest, NamesThatTheProgramGivesStayInAJoin) {
  if (size() == 1) return;
  SyncBatchNorm mine{BatchNormOptions(2)};
  const at::Tensor x = numbers({3, 2}, rank(), at::kFloat);
  if (rank() != 0) mine->forward(x);
  mine->collective_name = "given";
  join();
  mine->forward(x);
  EXPECT_EQ(mine->collective_name, "given");
}

TEST_F(SyncBatchNormTest, RankThatDoesNotUseTheOutputIsWaitedForAndNamed) {
  if (size() == 1) return;
  SyncBatchNorm mine(2);
  mine->collective_name = "unused";
  const auto usual = mine->backward_timeout;
  if (rank() != size() - 1) mine->backward_timeout = std::chrono::milliseconds(300);
  const at::Tensor x = numbers({3, 2}, rank(), at::kFloat).requires_grad_(true);
  const at::Tensor y = mine->forward(x);
  if (rank() == size() - 1) {
    barrier();
    y.sum().backward();  // the sums of the others wait for it
  } else {
    EXPECT_THAT(error_of([&] { y.sum().backward(); }),
                AllOf(StartsWith("timeout"), HasSubstr("SyncBatchNorm \"unused\""),
                      HasSubstr("add 0 * output.sum()")));
    barrier();
  }
  barrier();
  mine->backward_timeout = usual;
  const at::Tensor again = mine->forward(x);
  (again.sum() * (rank() == 0 ? 0 : 1)).backward();
}

TEST_F(SyncBatchNormTest, WrongInputOfOneRankIsToldToAll) {
  SyncBatchNorm mine(2);
  mine->collective_name = "wrong";
  const bool last = rank() == size() - 1;
  EXPECT_THAT(error_of([&] {
                mine->forward(last ? at::ones({3, 4}) : at::ones({3, 2}));
              }),
              AllOf(HasSubstr("wrong"), HasSubstr("has shape [3, 4]")));
  barrier();
  EXPECT_THAT(error_of([&] { mine->forward(at::ones({3})); }), HasSubstr("2 to 5 dimensions"));
  barrier();
  EXPECT_THAT(error_of([&] {
                mine->forward(at::ones({3, 2}, at::kLong));
              }),
              HasSubstr("floating-point dtype"));
  mine->eval();
  EXPECT_THAT(error_of([&] { mine->forward(at::ones({3, 5})); }), HasSubstr("[samples, 2, ...]"));
}

TEST_F(SyncBatchNormTest, SecondDerivativeIsRefused) {
  if (size() == 1) return;  // LibTorch's own, which has one
  SyncBatchNorm mine(2);
  const at::Tensor x = numbers({3, 2}, rank(), at::kFloat).requires_grad_(true);
  const at::Tensor y = mine->forward(x).sum();
  const auto gradient = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true,
                                              /*create_graph=*/true);
  EXPECT_THAT(error_of([&] { gradient[0].pow(2).sum().backward(); }),
              AllOf(StartsWith("invalid argument"), HasSubstr("second derivative")));
}

// Eval mode is for programs without a session too; here: without the other ranks.
TEST_F(SyncBatchNormTest, EvalModeIsLocal) {
  if (rank() != 0) return;
  SyncBatchNorm mine(2);
  mine->eval();
  const at::Tensor x = numbers({3, 2}, 1, at::kFloat).requires_grad_(true);
  mine->forward(x).sum().backward();
  expect_near(x.grad(), at::full({3, 2}, 1 / std::sqrt(1 + 1e-5)), 1e-6);
}

}  // namespace
}  // namespace horon::sync_batch_norm_test
