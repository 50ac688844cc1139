// Process sets that train a model each: each set's files are its own, and ranks that mean different
// files are told so.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <unistd.h>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/data/samplers.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/guards/save0.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::checkpoints_of_sets_test {
namespace {

namespace fs = std::filesystem;
using core::concat;
using testing::AllOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;
using testing_support::kInvalid;
using testing_support::kMismatch;

class SetsWithFiles : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = "horon_sets_" + std::to_string(getpid());
    folder_ = broadcast_object((fs::temp_directory_path() / name).string());
    if (rank() == 0) fs::create_directory(folder_);
    barrier();
    set_ = split_process_set(color_);
  }
  void TearDown() override {
    for (const ProcessSet& set : process_sets()) {
      if (!set.is_world()) remove_process_set(set);
    }
    barrier();
    if (rank() == 0) fs::remove_all(folder_);
  }
  // What all ranks say where the even and the odd ones give different paths.
  std::string mismatch(const char* call, const std::string& even, const std::string& odd) const {
    std::vector<int> evens, odds;
    for (int r = 0; r < size(); ++r) (r % 2 == 0 ? evens : odds).push_back(r);
    return concat(kMismatch, ": ", call, ": the ranks give different paths: \"", even, "\" on ",
                  core::name_ranks(evens), ", \"", odd, "\" on ", core::name_ranks(odds),
                  "; only that of rank 0 would be used. ");
  }
  std::string folder_;
  const int color_ = rank() % 2;
  ProcessSet set_;
};

TEST_F(SetsWithFiles, DifferentPathsAreAMismatchAndNothingIsWritten) {
  if (size() == 1) return;
  const std::string even = folder_ + "/lr0";
  const std::string odd = folder_ + "/lr1";
  const std::string own = color_ == 0 ? even : odd;
  EXPECT_THAT(error_of([&] { const Checkpoints unused(own); }),
              AllOf(StartsWith(mismatch("Checkpoints", even, odd)),
                    EndsWith("needs its own Checkpoints: {.process_set = set}")));
  EXPECT_THAT(error_of([&] { save0(at::ones({2}), own); }),
              AllOf(StartsWith(mismatch("save0", even, odd)), EndsWith("save0(value, path, set)")));
  EXPECT_TRUE(fs::is_empty(folder_));
  barrier();
  at::Tensor value = at::ones({2});
  Checkpoints checkpoints(folder_, {.keep_last = 0, .in_background = false});
  checkpoints.add("value", {{"value", value}});
  for (const int step : {1, 2}) checkpoints.save(step);
  value.fill_(7);
  const std::string file = folder_ + "/step-00000000000";
  EXPECT_THAT(error_of([&] { checkpoints.load(concat(file, color_ + 1, ".pt")); }),
              StartsWith(mismatch("Checkpoints::load", file + "1.pt", file + "2.pt")));
  EXPECT_TRUE(value.eq(7).all().item<bool>()) << "nothing was loaded";
  checkpoints.load(file + "2.pt");
  EXPECT_TRUE(value.eq(1).all().item<bool>());
}

TEST_F(SetsWithFiles, APathMayBeWrittenInMoreThanOneWay) {
  const fs::path relative = fs::path(folder_).lexically_relative(fs::current_path());
  const std::vector<std::string> ways = {folder_ + "/run", relative / "./run",
                                         folder_ + "//other/../run/", relative / "run/"};
  const std::string& own = ways[static_cast<size_t>(rank()) % ways.size()];
  const Checkpoints checkpoints(own);
  EXPECT_TRUE(fs::is_directory(folder_ + "/run"));
  save0(at::ones({2}), own + "/../x.pt");
  EXPECT_TRUE(fs::exists(folder_ + "/x.pt"));
}

// Ranks with working directories of their own, as on hosts of different users.
TEST_F(SetsWithFiles, ARelativePathIsTheSameWhereverARankIs) {
  const fs::path before = fs::current_path();
  const std::string own = concat(folder_, "/of_", rank());
  fs::create_directory(own);
  fs::current_path(own);
  save0(at::ones({2}), "x.pt");
  EXPECT_EQ(fs::exists("x.pt"), rank() == 0);
  fs::current_path(before);
}

struct Trained {
  Trained(const ProcessSet& set, int color)
      : optimizer(torch::optim::SGD(net->parameters(),
                                    torch::optim::SGDOptions(rate(color)).momentum(0.5)),
                  *net, {.process_set = set}) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : net->parameters()) p.fill_(1);
  }
  static double rate(int color) { return color == 0 ? 0.125 : 0.0625; }
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      net->forward(torch::ones({2, 4})).sum().backward();
      optimizer.step();
    }
  }
  float weight() { return net->weight[0][0].item<float>(); }

  torch::nn::Linear net = torch::nn::Linear(4, 1);
  DistributedOptimizer<torch::optim::SGD> optimizer;
};

TEST_F(SetsWithFiles, EachSetGoesOnFromItsOwn) {
  const std::string folder = concat(folder_, "/lr", color_);
  Trained straight(set_, color_);
  straight.run(5);
  {
    Trained first(set_, color_);
    Checkpoints checkpoints(folder, {.in_background = false, .process_set = set_});
    checkpoints.add("model", *first.net).add("optimizer", first.optimizer);
    EXPECT_FALSE(checkpoints.load_latest()) << "nothing is there yet";
    first.run(3);
    checkpoints.save(3 + color_, {.metric = color_, .values = {{"color", color_}}});
    save0(first.net, folder + ".pt", set_);
  }
  barrier();
  const int sets = std::min(size(), 2);
  for (int c = 0; c < sets; ++c) {
    EXPECT_TRUE(fs::exists(concat(folder_, "/lr", c, ".pt")));
    EXPECT_TRUE(fs::exists(concat(folder_, "/lr", c, "/step-00000000000", 3 + c, ".pt")));
  }
  Trained second(set_, color_);
  Checkpoints checkpoints(folder, {.process_set = set_});
  checkpoints.add("model", *second.net).add("optimizer", second.optimizer);
  const auto found = checkpoints.load_latest();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 3 + color_);
  EXPECT_EQ(found->ranks, set_.size());
  EXPECT_EQ(found->metric, color_);
  EXPECT_EQ(found->values.at("color").toInt(), color_);
  EXPECT_EQ(found->path, checkpoints.latest());
  EXPECT_EQ(found->path, checkpoints.best());
  second.run(2);
  EXPECT_EQ(second.weight(), straight.weight());
  torch::nn::Linear saved(4, 1);
  torch::load(saved, folder + ".pt");
  Trained third(set_, color_);
  third.run(3);
  EXPECT_EQ(saved->weight[0][0].item<float>(), third.weight());
}

// In a folder of all ranks, rank 0 would write its own optimizer for all of them.
TEST_F(SetsWithFiles, OptimizersOfUnlikeSetsAreNoOneOptimizer) {
  if (size() == 1) return;
  Trained trained(set_, color_);
  Checkpoints checkpoints(folder_, {.in_background = false});
  checkpoints.add("optimizer", trained.optimizer);
  EXPECT_THAT(error_of([&] { checkpoints.save(1); }),
              AllOf(StartsWith(kMismatch), HasSubstr("\"optimizer\" of rank 0 differs on rank"),
                    HasSubstr("SGD of rank"), HasSubstr(" on rank 1)")));
  EXPECT_TRUE(fs::is_empty(folder_));
  barrier();
}

TEST_F(SetsWithFiles, OneSetDoesNotWaitForTheOthersAndTellsItsErrors) {
  if (color_ == 0) {
    at::Tensor value = at::full({3}, 5);
    const std::string folder = folder_ + "/even";
    Checkpoints checkpoints(folder, {.process_set = set_});
    checkpoints.add("value", {{"value", value}});
    if (rank() == 0) fs::remove_all(folder);
    barrier(set_);
    checkpoints.save(1);
    EXPECT_THAT(error_of([&] { checkpoints.wait(); }),
                AllOf(HasSubstr("on rank 0: "), HasSubstr("can't be created")));
  }
  const ProcessSet first = add_process_set({0});
  if (rank() > 0) {
    EXPECT_THAT(error_of([&] { const Checkpoints none(folder_, {.process_set = first}); }),
                AllOf(StartsWith(kInvalid), HasSubstr("is not in process set")));
    EXPECT_THAT(error_of([&] { save0(at::ones({1}), folder_ + "/none.pt", first); }),
                HasSubstr("is not in process set"));
  } else {
    save0(at::ones({1}), folder_ + "/one.pt", first);
    EXPECT_TRUE(fs::exists(folder_ + "/one.pt"));
  }
}

// State that is shared out is gathered within the set.
TEST_F(SetsWithFiles, StateThatIsSharedOutIsOfTheSameSet) {
  const auto sharded = [](torch::nn::Linear& net, const ProcessSet& set) {
    return DistributedOptimizer(torch::optim::Adam(net->parameters(), 0.125), *net,
                                {.process_set = set, .shard_optimizer_state = true});
  };
  torch::nn::Linear net(4, 1), again(4, 1);
  auto optimizer = sharded(net, set_);
  auto later = sharded(again, set_);
  const auto train = [](torch::nn::Linear& of, auto& by) {
    by.zero_grad();
    of->forward(torch::ones({2, 4})).sum().backward();
    by.step();
  };
  broadcast_parameters(*net, set_.ranks().front(), set_);
  train(net, optimizer);
  const CheckpointOptions of_set{.in_background = false, .process_set = set_};
  const std::string own = concat(folder_, "/sharded", color_);
  Checkpoints(own, of_set).add("model", *net).add("optimizer", optimizer).save(1);
  Checkpoints(own, of_set).add("model", *again).add("optimizer", later).load_latest();
  train(net, optimizer);
  train(again, later);
  EXPECT_TRUE(again->weight.equal(net->weight));
  if (size() < 4) return;  // the odd ranks share nothing out
  Checkpoints of_all(folder_ + "/all");
  of_all.add("optimizer", optimizer);
  EXPECT_THAT(error_of([&] { of_all.save(1); }),
              AllOf(StartsWith(kInvalid), HasSubstr("on rank 1: "),
                    HasSubstr("is sharded over ranks 1 and 3"),
                    HasSubstr("give CheckpointOptions the process_set of the optimizer")));
}

// The samples of an epoch come once, whichever ranks have begun it and go on with it.
TEST_F(SetsWithFiles, ASamplerGoesOnInASetOfAnotherSize) {
  const ProcessSet first = add_process_set({size() - 1});
  const size_t count = 10 * static_cast<size_t>(size());
  for (const auto& [from, to] : {std::pair(first, ProcessSet()), std::pair(ProcessSet(), first),
                                 std::pair(ProcessSet(), ProcessSet())}) {
    at::Tensor times = at::zeros({static_cast<int64_t>(count)}, at::kLong);  // drawn
    const auto next = [&](DistributedRandomSampler& sampler, size_t steps) {
      for (size_t i = 0; i < steps; ++i) {
        for (const size_t one : sampler.next(1).value_or(std::vector<size_t>())) {
          times[static_cast<int64_t>(one)] += 1;
        }
      }
    };
    const std::string folder = concat(folder_, "/", from.size(), "_", to.size());
    if (from.includes_me()) {
      DistributedRandomSampler sampler(count, {.drop_last = true, .process_set = from});
      next(sampler, 2);
      Checkpoints checkpoints(folder, {.in_background = false, .process_set = from});
      checkpoints.add_of_rank("sampler", sampler).save(1);
    }
    barrier();
    if (to.includes_me()) {
      DistributedRandomSampler sampler(count, {.drop_last = true, .process_set = to});
      Checkpoints checkpoints(folder, {.process_set = to});
      EXPECT_TRUE(checkpoints.add_of_rank("sampler", sampler).load_latest());
      sampler.reset();
      next(sampler, count);
    }
    times = allreduce(times, {.op = ReduceOp::Sum});
    EXPECT_LE(times.max().item<int64_t>(), 1);
    const auto left_out = static_cast<size_t>(times.eq(0).sum().item<int64_t>());
    const auto rest = count - 2 * static_cast<size_t>(from.size());
    EXPECT_EQ(left_out, rest % static_cast<size_t>(to.size()));
  }
}

}  // namespace
}  // namespace horon::checkpoints_of_sets_test
