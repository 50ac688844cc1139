// Local SGD: what the ranks average, and when, beside the same training of all ranks in one
// process.
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/horon.h"

namespace horon::local_sgd_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

// Rank `of` is pulled to a point of its own, so the ranks go apart between two averages.
at::Tensor gradient_of(int of, int step, const at::Tensor& x) {
  return x - at::arange(x.numel(), at::kDouble).view(x.sizes()) * (of + 1) + 0.1 * step;
}

at::Tensor parameter_of(int64_t rows, int64_t columns) {
  return at::full({rows, columns}, 0.5, at::kDouble).requires_grad_(true);
}

void step_of_rank(const at::Tensor& x, int of, int step) {
  const at::NoGradGuard no_grad;
  x.sub_(gradient_of(of, step, x), 0.1);
}

// All ranks in one process, in float64.
class Oracle {
 public:
  explicit Oracle(const LocalSgdOptions& options, int ranks)
      : options_(options), start_(parameter_of(4, 3).detach()), momentum_(at::zeros({4, 3})) {
    for (int r = 0; r < ranks; ++r) of_ranks_.push_back(start_.clone());
  }
  void step(int number) {
    for (size_t r = 0; r < of_ranks_.size(); ++r) {
      step_of_rank(of_ranks_[r], static_cast<int>(r), number);
    }
  }
  void average() {
    at::Tensor change = at::zeros_like(start_);
    for (const at::Tensor& each : of_ranks_) change += start_ - each;
    change /= static_cast<double>(of_ranks_.size());
    momentum_ = momentum_ * options_.outer_momentum + change;
    const at::Tensor step =
        options_.outer_nesterov ? change + momentum_ * options_.outer_momentum : momentum_;
    start_ -= step * options_.outer_lr;
    for (at::Tensor& each : of_ranks_) each = start_.clone();
  }
  const at::Tensor& of(int rank) const { return of_ranks_[static_cast<size_t>(rank)]; }

 private:
  LocalSgdOptions options_;
  at::Tensor start_, momentum_;
  std::vector<at::Tensor> of_ranks_;
};

void expect_near(const at::Tensor& got, const at::Tensor& expected, double tolerance = 1e-12) {
  EXPECT_TRUE(at::allclose(got, expected, tolerance, tolerance)) << got << "\nnot " << expected;
}

TEST(LocalSgd, AveragesAsOneProcessWould) {
  const LocalSgdOptions average{.steps = 3};
  const LocalSgdOptions momentum{.steps = 4, .outer_lr = 0.7, .outer_momentum = 0.9};
  LocalSgdOptions heavy_ball = momentum;
  heavy_ball.outer_nesterov = false;
  for (const LocalSgdOptions& options :
       {average, momentum, heavy_ball, LocalSgdOptions{.steps = 1, .outer_lr = 0.5}}) {
    const at::Tensor x = parameter_of(4, 3);
    LocalSgd local({{"x", x}}, options);
    Oracle oracle(options, size());
    for (int step = 1; step <= 14; ++step) {
      step_of_rank(x, rank(), step);
      oracle.step(step);
      const bool is_due = step % options.steps == 0;
      EXPECT_EQ(local.step(), is_due);
      if (is_due) oracle.average();
      expect_near(x, oracle.of(rank()));
    }
    EXPECT_EQ(local.averages(), 14 / options.steps);
    EXPECT_EQ(local.steps_since_average(), 14 % options.steps);
    local.average();
    oracle.average();
    expect_near(x, oracle.of(rank()));
    check_replicas_equal({{"x", x}});
    EXPECT_EQ(local.steps_since_average(), 0);
  }
}

// With momentum, an outer step would move the model even if no rank has made a step.
TEST(LocalSgd, ASecondAverageMovesNothing) {
  const LocalSgdOptions options{.steps = 4, .outer_lr = 0.7, .outer_momentum = 0.9};
  const at::Tensor x = parameter_of(4, 3);
  LocalSgd local({{"x", x}}, options);
  Oracle oracle(options, size());
  local.average();
  EXPECT_TRUE(x.equal(parameter_of(4, 3)));
  EXPECT_EQ(local.averages(), 0);
  // Ranks that have called step(): all of them, one, and none.
  const auto train = [&](int step, bool calls_step) {
    step_of_rank(x, rank(), step);
    oracle.step(step);
    if (calls_step) local.step();
  };
  for (int step = 0; step < 4; ++step) train(step, true);
  for (int round = 1; round <= 3; ++round) {
    if (round > 1) {
      train(2 + round, round == 2 && rank() == size() - 1);
      local.average();
    }
    oracle.average();
    for (int again = 0; again < 3; ++again) {
      expect_near(x, oracle.of(rank()));
      EXPECT_EQ(local.averages(), round);
      EXPECT_EQ(local.steps_since_average(), 0);
      local.average();
    }
  }
}

// A step that has moved nothing (it was skipped, or its learning rate is 0) is a step.
TEST(LocalSgd, AStepOfOneRankIsDueForAll) {
  const LocalSgdOptions options{.steps = 2, .outer_lr = 0.7, .outer_momentum = 0.9};
  const at::Tensor x = parameter_of(4, 3);
  LocalSgd local({{"x", x}}, options);
  Oracle oracle(options, size());
  step_of_rank(x, rank(), 0);
  oracle.step(0);
  local.average();
  oracle.average();
  if (rank() == 0) local.step();
  local.average();
  oracle.average();
  expect_near(x, oracle.of(rank()));
  EXPECT_EQ(local.averages(), 2);
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    const torch::NoGradGuard no_grad;
    norm->running_mean.fill_(rank());
    norm->num_batches_tracked.fill_(rank() + 5);
    for (at::Tensor& p : parameters()) p.fill_(rank());
    frozen = register_parameter("frozen", torch::full({2}, rank() + 0.5), /*requires_grad=*/false);
    if (rank() % 2 == 1) conv->weight.set_data(conv->weight.to(at::MemoryFormat::ChannelsLast));
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(3, 4, 3));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(4));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 4));
  torch::nn::Linear tied = register_module("tied", torch::nn::Linear(head));
  at::Tensor empty = register_parameter("empty", torch::ones({0, 3}));
  at::Tensor half = register_parameter("half", torch::ones({3}, torch::kBFloat16));
  at::Tensor spectrum = register_parameter("spectrum", torch::ones({3}, torch::kComplexFloat));
  at::Tensor codes = register_buffer("codes", torch::ones({3}).to(torch::kFloat8_e4m3fn));
  at::Tensor frozen;
};
TORCH_MODULE(Net);

TEST(LocalSgd, ParametersAndBuffersOfAModule) {
  Net net;
  LocalSgd local(*net);
  local.average();
  const double mean = (size() - 1) / 2.0;
  for (const auto& item : net->named_parameters()) {
    if (item.key() == "frozen") continue;
    EXPECT_TRUE(at::allclose(item.value(), at::full_like(item.value(), mean))) << item.key();
  }
  EXPECT_TRUE(net->frozen.eq(rank() + 0.5).all().item<bool>());
  EXPECT_TRUE(at::allclose(net->norm->running_mean, at::full({4}, mean)));
  EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), rank() + 5);
  EXPECT_TRUE(net->codes.to(at::kFloat).eq(1).all().item<bool>());
}

TEST(LocalSgd, WhatHasMovedTravelsIn16Bits) {
  for (const Compression compression : {Compression::BFloat16, Compression::Int8}) {
    const at::Tensor x = at::full({3000}, 1000.0, at::kFloat).requires_grad_(true);
    const at::Tensor wide = at::full({3}, 1000.0, at::kDouble).requires_grad_(true);
    LocalSgd local({{"x", x}, {"wide", wide}}, {.compression = compression});
    {
      const at::NoGradGuard no_grad;
      x.sub_(0.25 * (rank() + 1));
      wide.sub_(0.1 * (rank() + 1));
    }
    local.average();
    const double mean = (size() + 1) / 2.0;
    // Of 1000 in bfloat16 the last place would be 4.
    expect_near(x.to(at::kDouble), at::full({3000}, 1000 - 0.25 * mean, at::kDouble), 2e-5);
    expect_near(wide, at::full({3}, 1000 - 0.1 * mean, at::kDouble), 1e-12);
    check_replicas_equal({{"x", x}});
  }
}

TEST(LocalSgd, GoesOnFromAnArchive) {
  const LocalSgdOptions options{.steps = 3, .outer_lr = 0.7, .outer_momentum = 0.9};
  const at::Tensor x = parameter_of(4, 3);
  Oracle oracle(options, size());
  std::string bytes;
  const auto train = [&](LocalSgd& local, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      step_of_rank(x, rank(), step);
      oracle.step(step);
      if (local.step()) oracle.average();
    }
  };
  {
    LocalSgd local({{"fc.x", x}}, options);
    train(local, 0, 6);
    torch::serialize::OutputArchive archive;
    local.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    bytes = std::move(stream).str();
  }
  const auto load = [&](LocalSgd& into) {
    std::istringstream stream(bytes);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    into.load(archive);
  };
  LocalSgd local({{"fc.x", x}}, options);
  {
    const at::NoGradGuard no_grad;
    const at::Tensor saved = x.clone();
    x.add_(1);  // what the archive says counts
    load(local);
    x.copy_(saved);
  }
  local.average();  // no step has been made since
  EXPECT_EQ(local.averages(), 2);
  if (rank() == 0) {
    broadcast_state(local, 0);
  } else {
    LocalSgd copy({{"fc.x", x}}, options);
    broadcast_state(copy, 0);
    EXPECT_EQ(copy.averages(), 2);
  }
  train(local, 6, 12);
  expect_near(x, oracle.of(rank()));
  const at::Tensor y = parameter_of(2, 2);
  LocalSgd other({{"y", y}}, options), longer({{"x", x}, {"y", y}}, options);
  EXPECT_THAT(error_of([&] { load(other); }),
              AllOf(HasSubstr("start of \"y\" is float64 [4, 3] in the archive but float64 [2, 2]"),
                    StartsWith(kInvalid)));
  EXPECT_THAT(error_of([&] { load(longer); }), HasSubstr("has 2 tensors, but 4 are needed"));
  LocalSgd plain({{"x", x}});
  EXPECT_THAT(error_of([&] { load(plain); }), HasSubstr("has 2 tensors, but 0 are needed"));
}

TEST(LocalSgd, RanksThatHaveNotBegunAlike) {
  if (size() == 1) return;
  const at::Tensor x = parameter_of(4, 3), v = parameter_of(1, 2);
  {
    const at::NoGradGuard no_grad;
    if (rank() == size() - 1) v.add_(1);
  }
  LocalSgd local({{"x", x}, {"v", v}}, {.outer_lr = 0.5});
  const at::Tensor before = v.detach().clone();
  EXPECT_THAT(error_of([&] { local.average(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("\"v\""),
                    HasSubstr("rank " + std::to_string(size() - 1))));
  EXPECT_TRUE(v.equal(before));
  LocalSgd plain({{"x", x}, {"v", v}});  // the average itself brings them together
  plain.average();
  expect_near(v, at::full({1, 2}, 0.5 + 1.0 / size(), at::kDouble));
}

TEST(LocalSgd, WrongUseIsToldOnAllRanks) {
  const at::Tensor x = parameter_of(4, 3);
  const auto of = [&](const LocalSgdOptions& options) {
    return error_of([&] { LocalSgd local({{"x", x}}, options); });
  };
  EXPECT_THAT(of({.steps = 0}), AllOf(StartsWith(kInvalid), HasSubstr("steps is 0")));
  EXPECT_THAT(of({.outer_lr = -1}), HasSubstr("outer_lr is -1"));
  EXPECT_THAT(of({.outer_momentum = 1}), HasSubstr("outer_momentum is 1"));
  EXPECT_THAT(of({.outer_momentum = std::nan("")}), HasSubstr("outer_momentum is nan"));
  EXPECT_THAT(error_of([&] {
                LocalSgd local({{"x", x}, {"x", parameter_of(1, 1)}});
              }),
              HasSubstr("\"x\""));
  if (size() == 1) return;
  LocalSgd local({{"x", x}}, {.steps = rank() == 0 ? 4 : 8});
  EXPECT_THAT(error_of([&] { local.average(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("4 steps"), HasSubstr("8 steps")));
  LocalSgd uneven({{"x", rank() == 0 ? x : parameter_of(4, 4)}});
  EXPECT_THAT(error_of([&] { uneven.average(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("parameter \"x\""), HasSubstr("[4, 4]")));
}

TEST(LocalSgd, TensorsInAnotherOrderAreAMismatch) {
  if (size() == 1) return;
  const at::Tensor a = parameter_of(1, 2), c = parameter_of(1, 2);
  LocalSgd local(rank() == 0 ? NamedTensors{{"a", a}, {"c", c}} : NamedTensors{{"c", c}, {"a", a}});
  EXPECT_THAT(error_of([&] { local.average(); }),
              AllOf(StartsWith(kMismatch), HasSubstr("in place 0"), HasSubstr("in place 1")));
  LocalSgd other({{"a", a}}, {.outer_lr = rank() == 0 ? 0.5 : 0.50000001});
  EXPECT_THAT(error_of([&] { other.average(); }), HasSubstr("0.50000001"));
}

// The root of a broadcast has not loaded anything.
TEST(LocalSgd, GoesOnAfterAJoinThatMissedAnAverage) {
  if (size() == 1) return;
  const at::Tensor x = parameter_of(4, 3);
  const LocalSgdOptions outer{.steps = 1, .outer_lr = 0.5, .outer_momentum = 0.5};
  for (const LocalSgdOptions& options : {LocalSgdOptions{.steps = 1}, outer}) {
    LocalSgd local({{"x", x}}, options);
    local.step();
    const int last = size() - 1;
    if (rank() != last) local.step();
    join();
    broadcast_parameters({{"x", x}}, 0);
    if (options.outer_lr != 1) {
      EXPECT_THAT(error_of([&] { local.average(); }),
                  AllOf(StartsWith(kMismatch), HasSubstr("broadcast_state()")));
      broadcast_state(local, 0);
    }
    {
      const at::NoGradGuard no_grad;
      x.sub_(rank());
    }
    local.step();
    check_replicas_equal({{"x", x}});
    EXPECT_LT(x[0][0].item<double>(), 0.5);
  }
}

// No average was missed, and yet the ranks have made unlike numbers of steps since.
TEST(LocalSgd, CountsAnewBehindAJoin) {
  if (size() == 1) return;
  const at::Tensor x = parameter_of(4, 3);
  LocalSgd local({{"x", x}}, {.steps = 4});
  for (int step = 0; step < (rank() == 0 ? 3 : 1); ++step) EXPECT_FALSE(local.step());
  join();
  for (int step = 1; step <= 4; ++step) EXPECT_EQ(local.step(), step == 4);
}

TEST(LocalSgd, AmongTheRanksOfAProcessSet) {
  if (size() < 2) return;
  const ProcessSet set = add_process_set({0, size() - 1});
  const at::Tensor x = parameter_of(4, 3);
  {
    const at::NoGradGuard no_grad;
    x.fill_(rank());
  }
  LocalSgd local({{"x", x}}, {.steps = 1, .process_set = set});
  EXPECT_EQ(local.step(), set.includes_me());
  const double expected = set.includes_me() ? (size() - 1) / 2.0 : rank();
  expect_near(x, at::full({4, 3}, expected, at::kDouble));
  LocalSgd outer({{"x", x}}, {.outer_lr = 0.5, .process_set = set});
  broadcast_state(outer, 0);  // also on the ranks that keep nothing
  remove_process_set(set);
}

TEST(LocalSgd, ARankWithoutDataHasNoPart) {
  if (size() == 1) return;
  const at::Tensor x = parameter_of(4, 3);
  LocalSgd local({{"x", x}}, {.steps = 2, .outer_momentum = 0.5});
  const bool ends_early = rank() == size() - 1;
  const at::NoGradGuard no_grad;
  for (int step = 0; step < (ends_early ? 2 : 4); ++step) {
    x.sub_(1 + rank());
    local.step();
  }
  const int last = join();
  EXPECT_EQ(last == size() - 1, false);
  if (!ends_early) {
    const double first = 2 * (size() + 1) / 2.0;  // moved by the first average
    const double second = 2 * size() / 2.0;       // by the others alone
    const double start = 0.5 - (first + 0.5 * first);
    const double momentum = 0.5 * first + second;
    expect_near(x, at::full({4, 3}, start - (second + 0.5 * momentum), at::kDouble));
  }
}

}  // namespace
}  // namespace horon::local_sgd_test
