// What rank 0 does alone, and decisions that all ranks take alike.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <sstream>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/autograd.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/collectives/sparse_allreduce.h"
#include "horon/torch_bindings/guards/best_checkpoint.h"
#include "horon/torch_bindings/guards/early_stopping.h"
#include "horon/torch_bindings/guards/save0.h"

namespace horon::guards_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

const double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor ones() { return at::ones({3}); }

// The session goes on, and the unnamed calls of the ranks are still counted alike.
void expect_all_goes_on() {
  EXPECT_EQ(allreduce(ones(), {.op = ReduceOp::Sum})[0].item<int>(), size());
  EXPECT_EQ(grouped_allreduce({ones()}, {.op = ReduceOp::Sum})[0][0].item<int>(), size());
  EXPECT_EQ(allgather_object(rank()).size(), static_cast<size_t>(size()));
  EXPECT_EQ(allgather(ones()).size(0), 3 * size());
  EXPECT_EQ(broadcast_object(7), 7);
  const ProcessSet all = split_process_set(0);
  EXPECT_EQ(allreduce(ones(), {.op = ReduceOp::Sum, .process_set = all})[0].item<int>(), size());
  remove_process_set(all);
  on_all_ranks([] {});
  barrier();
}

TEST(RankZero, ACollectiveInItsScopeThrowsAtOnceAndTheSessionGoesOn) {
  const std::vector<std::function<void()>> calls = {
      [] { allreduce(ones()); },
      [] { allreduce_(ones(), {.name = "named"}); },
      [] { (void)allreduce_async(ones()); },
      [] { allgather(ones()); },
      [] { broadcast(ones()); },
      [] { reducescatter(ones()); },
      [] { alltoall(at::ones({size()})); },
      [] { gather(ones()); },
      [] { grouped_allreduce({ones()}); },
      [] { sparse_allreduce(ones().to_sparse()); },
      [] { autograd::allgather(ones()); },
      [] { allgather_object(1); },
      [] { broadcast_object(1); },
      [] { on_all_ranks([] {}); },
      [] { barrier(); },
      [] { join(); },
      [] { add_process_set({0}); },
      [] { remove_process_set({}); },
      [] { split_process_set(0); },
      [] { EarlyStopping().check(1); },
  };
  int ran = 0;
  rank_zero_only([&] {
    ++ran;
    EXPECT_EQ(rank(), 0);
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_THAT(error_of(calls[i]), AllOf(StartsWith("invalid argument: \""),
                                            HasSubstr("code that rank 0 runs alone")))
          << i;
    }
  });
  EXPECT_EQ(ran, rank() == 0 ? 1 : 0);
  expect_all_goes_on();
}

TEST(RankZero, ScopesNestAndEndAndBindOneThread) {
  {
    const RankZeroScope outer;
    EXPECT_EQ(static_cast<bool>(outer), rank() == 0);
    rank_zero_only([] {});
    EXPECT_THAT(error_of([] { barrier(); }), HasSubstr("alone"));  // on every rank
    std::thread([] { barrier(); }).join();
  }
  EXPECT_THROW(
      {
        const RankZeroScope scope;
        throw std::runtime_error("ends the scope");
      },
      std::runtime_error);
  expect_all_goes_on();
}

TEST(RankZero, WaitsForWhatWasBegunBefore) {
  const Handle handle = allreduce_async(ones(), {.op = ReduceOp::Sum});
  const RankZeroScope scope;
  EXPECT_EQ(handle.wait()[0].item<int>(), size());
}

TEST(RankZero, PrintsOneLine) {
  testing::internal::CaptureStdout();
  print0("loss ", 0.5, ", step ", 3);
  print0();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), rank() == 0 ? "loss 0.5, step 3\n\n" : "");
}

TEST(RankZero, SavesWholeFilesOrFailsOnAllRanks) {
  const std::string folder = broadcast_object(
      (std::filesystem::temp_directory_path() / ("save0_" + std::to_string(getpid()))).string());
  rank_zero_only([&] { std::filesystem::create_directory(folder); });
  save0(at::arange(4), folder + "/x.pt");
  at::Tensor read;
  torch::load(read, folder + "/x.pt");
  EXPECT_TRUE(read.equal(at::arange(4)));
  barrier();
  save0(at::arange(2), folder + "/x.pt");
  torch::load(read, folder + "/x.pt");
  EXPECT_TRUE(read.equal(at::arange(2)));
  EXPECT_THAT(error_of([&] { save0(read, folder + "/none/x.pt"); }),
              AllOf(StartsWith("failed: save0: on rank 0: can't write "), HasSubstr("/none/x.pt")));
  barrier();
  rank_zero_only([&] { std::filesystem::remove_all(folder); });
}

// While it lives, files of this process get no larger than this: writing fails as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    (void)std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

template <class Value>
std::string error_on_a_full_disk(const Value& value, const std::string& path) {
  return error_of([&] {
    const FileLimit limit(16384);
    save0(value, path);
  });
}

TEST(RankZero, SavesNothingOnAFullDisk) {
  const std::string folder = broadcast_object(
      (std::filesystem::temp_directory_path() / ("full_" + std::to_string(getpid()))).string());
  rank_zero_only([&] { std::filesystem::create_directory(folder); });
  const std::string path = folder + "/x.pt";
  save0(at::arange(4), path);
  const auto fails = AllOf(StartsWith("failed: save0: on rank 0: can't write " + path),
                           HasSubstr("File too large"));
  const at::Tensor tensor = at::ones({1 << 16});
  EXPECT_THAT(error_on_a_full_disk(tensor, path), fails);
  EXPECT_THAT(error_on_a_full_disk(std::vector<at::Tensor>{tensor, tensor}, path), fails);
  torch::nn::Linear module(128, 128);
  EXPECT_THAT(error_on_a_full_disk(module, path), fails);
  torch::optim::Adam optimizer(module->parameters());
  module(at::ones({1, 128})).sum().backward();
  optimizer.step();
  EXPECT_THAT(error_on_a_full_disk(optimizer, path), fails);
  at::Tensor read;
  torch::load(read, path);
  EXPECT_TRUE(read.equal(at::arange(4)));
  using Files = std::filesystem::directory_iterator;
  EXPECT_EQ(std::distance(Files(folder), Files()), 1) << "a temporary file is left";
  barrier();
  // What was written last, the small end of a file, may be what does not fit.
  save0(tensor, path);
  const auto bytes = std::filesystem::file_size(path);
  barrier();
  const FileLimit limit(bytes - 1);
  EXPECT_THAT(error_of([&] { save0(tensor, path); }), fails);
  barrier();
  rank_zero_only([&] { std::filesystem::remove_all(folder); });
}

// What check() says of these values on rank 0; the other ranks give other values.
std::vector<bool> checks(EarlyStopping& stopping, const std::vector<double>& values) {
  std::vector<bool> stops;
  stops.reserve(values.size());
  for (const double value : values) {
    stops.push_back(stopping.check(rank() == 0 ? value : 100.0 * rank()));
  }
  return stops;
}

TEST(EarlyStopping, AllRanksStopByTheValueOfRankZero) {
  EarlyStopping stopping({.patience = 2});
  EXPECT_THAT(checks(stopping, {3, 2, 2.5}), ElementsAre(false, false, false));
  EXPECT_FALSE(stopping.improved());
  EXPECT_THAT(checks(stopping, {1, 1, 4}), ElementsAre(false, false, true));
  EXPECT_EQ(stopping.best(), 1);
  EXPECT_EQ(stopping.reason(), "no improvement in 2 checks; the best was 1 in check 4");
  // A restart goes on where it was.
  EarlyStopping again({.patience = 2});
  EarlyStopping::State state = stopping.state();
  state.checks = 5;
  state.reason.clear();
  again.set_state(state);
  EXPECT_THAT(checks(again, {1, 0}), ElementsAre(true, true));
}

TEST(EarlyStopping, Options) {
  EarlyStopping higher({.better = Better::Higher, .patience = 1, .min_delta = 0.5});
  EXPECT_THAT(checks(higher, {1, 2, 2.25}), ElementsAre(false, false, true));
  EarlyStopping enough({.good_enough = 0.5});
  EXPECT_THAT(checks(enough, {1, 0.5}), ElementsAre(false, true));
  EXPECT_EQ(enough.reason(), "0.5 in check 2 is as good as 0.5");
  EarlyStopping diverged;
  EXPECT_THAT(checks(diverged, {1, kNan}), ElementsAre(false, true));
  EarlyStopping patient({.patience = 3, .stop_at_nonfinite = false});
  EXPECT_THAT(checks(patient, {kNan, 1, kNan, 2}), ElementsAre(false, false, false, false));
  EXPECT_THAT(error_of([] { EarlyStopping({.patience = 0}); }), HasSubstr("give 1 or more"));
  EXPECT_THAT(error_of([] { EarlyStopping({.min_delta = kNan}); }), HasSubstr("give 0 or more"));
  EXPECT_THAT(error_of([] { EarlyStopping({.good_enough = kNan}); }),
              HasSubstr("good_enough is NaN"));
}

// A rank that stops alone leaves the others waiting.
TEST(EarlyStopping, OptionsThatDifferAreNamedAtTheFirstCheck) {
  if (size() == 1) return;
  const bool last = rank() == size() - 1;
  EarlyStopping stopping({.name = "stop", .patience = last ? 2 : 1, .good_enough = 0.25});
  const std::string rank_of_last = "rank " + std::to_string(size() - 1);
  EXPECT_THAT(
      error_of([&] { stopping.check(1); }),
      AllOf(
          StartsWith("mismatch: \"stop\": the options of the ranks differ"),
          HasSubstr("agree_on FirstRank, better Lower, patience 1, min_delta 0, good_enough 0.25,"),
          HasSubstr(rank_of_last + " has agree_on FirstRank, better Lower, patience 2,")));
  EXPECT_EQ(stopping.state().checks, 0);
  BestCheckpoint best({.name = "best", .agree_on = last ? AgreeOn::Max : AgreeOn::Min});
  EXPECT_THAT(error_of([&] { best.judge(1, 1); }),
              AllOf(StartsWith("mismatch: \"best\": the options of the ranks differ"),
                    HasSubstr("agree_on Min, better Lower, keep 1"),
                    HasSubstr(rank_of_last + " has agree_on Max, better Lower, keep 1")));
  expect_all_goes_on();
}

TEST(EarlyStopping, ByTheMeanOrTheWorstOfAllRanks) {
  EarlyStopping mean({.agree_on = AgreeOn::Mean});
  mean.check(rank());
  EXPECT_EQ(mean.best(), (size() - 1) / 2.0);
  EarlyStopping worst({.agree_on = AgreeOn::Max});
  worst.check(rank());
  EXPECT_EQ(worst.best(), size() - 1);
  for (const int diverged : {0, size() - 1}) {
    for (const AgreeOn how : {AgreeOn::Min, AgreeOn::Max, AgreeOn::Mean}) {
      EXPECT_TRUE(EarlyStopping({.agree_on = how}).check(rank() == diverged ? kNan : 0));
    }
  }
  if (size() < 3) return;
  const ProcessSet set = add_process_set({1, 2});
  EarlyStopping of_set({.process_set = set});
  if (set.includes_me()) {
    of_set.check(rank() * 10);
    EXPECT_EQ(of_set.best(), 10);
  }
  remove_process_set(set);
}

TEST(EarlyStopping, RanksThatCheckUnequallyOftenAreNamed) {
  if (size() == 1) return;
  EarlyStopping stopping({.name = "stop"});
  if (rank() == 0) stopping.set_state({.checks = 4});
  EXPECT_THAT(error_of([&] { stopping.check(1); }),
              StartsWith("mismatch: \"stop\": the ranks are at different decisions: 1 on rank"));
  expect_all_goes_on();
}

TEST(BestCheckpoint, AllRanksKeepTheSame) {
  BestCheckpoint best({.better = Better::Higher, .keep = 2});
  struct Case {
    double value;
    bool save;
    std::vector<int64_t> remove;
  };
  const std::vector<Case> cases = {{1, true, {}},  {kNan, false, {}}, {0.5, true, {}},
                                   {2, true, {2}}, {1, false, {}},    {0.75, false, {}},
                                   {3, true, {0}}};
  for (size_t step = 0; step < cases.size(); ++step) {
    const double value = rank() == 0 ? cases[step].value : -1.0;
    const CheckpointDecision decision = best.judge(static_cast<int64_t>(step), value);
    EXPECT_EQ(decision.save, cases[step].save) << step;
    EXPECT_EQ(decision.remove, cases[step].remove) << step;
  }
  ASSERT_EQ(best.kept().size(), 2U);
  EXPECT_EQ(best.kept()[0].step, 6);
  EXPECT_EQ(best.kept()[1].step, 3);
  // Steps that are made again must not remove the file that has just been saved.
  CheckpointDecision again = best.judge(3, 2.5);
  EXPECT_TRUE(again.save);
  EXPECT_TRUE(again.remove.empty());
  again = best.judge(6, 2.75);  // what is there is better
  EXPECT_FALSE(again.save);
  EXPECT_TRUE(again.remove.empty());
  ASSERT_EQ(best.kept().size(), 2U);
  EXPECT_EQ(best.kept()[0].value, 3);
  EXPECT_EQ(best.kept()[1].value, 2.5);
  if (size() > 1) {
    EXPECT_THAT(error_of([&] { best.judge(rank(), 1); }), HasSubstr("0 on rank 0"));
  }
  EXPECT_THAT(error_of([] { BestCheckpoint({.keep = 0}); }), HasSubstr("give 1 or more"));
}

TEST(BestCheckpoint, ForgetsAStepThatCouldNotBeSaved) {
  BestCheckpoint best({.keep = 1});
  EXPECT_TRUE(best.judge(1, 0.5).save);
  EXPECT_EQ(best.judge(2, 0.3).remove, std::vector<int64_t>{1});
  best.forget(2);
  ASSERT_EQ(best.kept().size(), 1U);
  EXPECT_EQ(best.kept()[0].step, 1);
  EXPECT_EQ(best.kept()[0].value, 0.5);
  EXPECT_THAT(error_of([&] { best.forget(2); }), HasSubstr("the last decision was not to save"));
  const CheckpointDecision third = best.judge(3, 0.4);  // better than the file that is there
  EXPECT_TRUE(third.save);
  EXPECT_EQ(third.remove, std::vector<int64_t>{1});
  EXPECT_THAT(error_of([&] { best.forget(2); }), HasSubstr("was to save step 3"));
  EXPECT_FALSE(best.judge(4, 1).save);
  EXPECT_THAT(error_of([&] { best.forget(3); }), HasSubstr("not to save"));
  // One that is made again has the file and the value that it had.
  EXPECT_TRUE(best.judge(3, 0.25).save);
  best.forget(3);
  EXPECT_EQ(best.kept()[0].value, 0.4);
}

// As torch::save() writes it and torch::load() reads it.
template <class Guard>
void copy_through_archive(const Guard& from, Guard& into) {
  std::stringstream stream;
  torch::save(from, stream);
  torch::load(into, stream);
}

TEST(SavedGuards, GoOnWhereTheyWere) {
  EarlyStopping stopping({.patience = 2});
  EarlyStopping copy({.patience = 2});
  copy_through_archive(stopping, copy);  // without a best value
  EXPECT_THAT(checks(copy, {3}), ElementsAre(false));
  EXPECT_THAT(checks(stopping, {3, 4}), ElementsAre(false, false));
  copy_through_archive(stopping, copy);
  EXPECT_THAT(checks(copy, {5}), ElementsAre(true));
  EXPECT_EQ(copy.reason(), "no improvement in 2 checks; the best was 3 in check 1");
  copy_through_archive(copy, stopping);
  EXPECT_EQ(stopping.reason(), copy.reason());

  BestCheckpoint best({.keep = 2});
  BestCheckpoint other({.keep = 2});
  for (int64_t step = 0; step < 3; ++step) best.judge(step, 5.0 - static_cast<double>(step));
  copy_through_archive(best, other);
  ASSERT_EQ(other.kept().size(), 2U);
  EXPECT_EQ(other.kept()[0].step, 2);
  EXPECT_EQ(other.judge(3, 3.5).remove, std::vector<int64_t>{1});

  std::stringstream stream;
  torch::save(at::ones({2}), stream);
  const std::string bytes = stream.str();
  std::istringstream one(bytes), two(bytes);
  EXPECT_THAT(error_of([&] { torch::load(stopping, one); }), HasSubstr("holds no state"));
  EXPECT_THAT(error_of([&] { torch::load(best, two); }),
              HasSubstr("holds no state of a BestCheckpoint"));
  EXPECT_EQ(best.kept().size(), 2U);
}

}  // namespace
}  // namespace horon::guards_test
