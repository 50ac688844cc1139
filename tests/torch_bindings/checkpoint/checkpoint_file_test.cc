// Labels of checkpoints, what has no place in a file, and files whose hash is right but not their
// content.
#include "horon/torch_bindings/checkpoint/checkpoint_file.h"

#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>

#include "horon/tests/support/grouping_locale.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoint_folder.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/checkpoint/opened_checkpoint.h"
#include "horon/torch_bindings/checkpoint/random_state.h"
#include "horon/torch_bindings/checkpoint/rank_state.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::checkpoint_file_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class CheckpointFile : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = "horon_checkpoint_file_" + std::to_string(getpid());
    folder_ = broadcast_bytes((fs::temp_directory_path() / name).string());
    if (rank() == 0) fs::create_directory(folder_);
    barrier();
  }
  void TearDown() override {
    barrier();
    if (rank() == 0) fs::remove_all(folder_);
  }
  std::string folder_;
};

c10::impl::GenericDict dictionary() {
  return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
}

TEST_F(CheckpointFile, LabelsAreReadAsTheyWereWrittenInEveryLocale) {
  const std::string path = folder_ + "/rank-" + std::to_string(rank()) + ".pt";
  const test::GroupingLocale german;
  for (const std::optional<double> metric :
       {std::optional<double>(), std::optional(0.1), std::optional(-1e300),
        std::optional(std::numeric_limits<double>::infinity()), std::optional(1.0 / 3)}) {
    torch_detail::write_checkpoint_file(
        path, {.number = 12345, .step = 9876543210, .metric = metric}, dictionary());
    const torch_detail::CheckpointLabel label = torch_detail::read_checkpoint_label(path);
    EXPECT_EQ(label.number, 12345u);
    EXPECT_EQ(label.step, 9876543210);
    EXPECT_EQ(label.metric, metric);
  }
}

// As a job that has been started again while the one before still writes, or another job that was
// given the same folder: here each rank is one.
TEST_F(CheckpointFile, JobsThatWriteTheSameOneLeaveAWholeOne) {
  const std::string path = folder_ + "/step-000000000001.pt";
  c10::impl::GenericDict content = dictionary();
  content.insert("tensor", at::full({(1 << 20) + rank()}, rank()));
  for (int i = 0; i < 3; ++i) {
    barrier();
    EXPECT_EQ(test::error_of([&] {
                torch_detail::write_checkpoint_file(path, {.number = 1, .step = 1, .metric = {}},
                                                    content);
              }),
              "no error");
    barrier();
    EXPECT_EQ(test::error_of([&] { torch_detail::read_checkpoint_file(path); }), "no error");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

// A job goes on when a file could not be written, and may try again at each step.
TEST_F(CheckpointFile, NothingIsLeftOfOneThatDoesNotFitOnTheDisk) {
  c10::impl::GenericDict content = dictionary();
  content.insert("tensor", at::zeros({1 << 20}));
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 16384, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = test::error_of([&] {
    torch_detail::write_checkpoint_file(folder_ + "/step-000000000001.pt",
                                        {.number = 1, .step = 1, .metric = {}}, content);
  });
  setrlimit(RLIMIT_FSIZE, &before);
  (void)std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("step-000000000001.pt: can't be written: File too large"));
  barrier();
  EXPECT_TRUE(fs::is_empty(folder_));
}

// What another program has put there under such a name is not counted, nor removed.
TEST_F(CheckpointFile, FilesThatCanNotBeReadTakeNoPlaceOfTheKept) {
  const std::string foreign = folder_ + "/step-foreign.pt";
  if (rank() == 0) std::ofstream(foreign) << "of another program";
  barrier();
  Checkpoints checkpoints(folder_, {.keep_last = 1, .keep_best = 1, .in_background = false});
  for (const int step : {1, 2, 3}) checkpoints.save(step, {.metric = step});
  barrier();
  EXPECT_TRUE(fs::exists(foreign));
  EXPECT_TRUE(fs::exists(folder_ + "/step-000000000001.pt")) << "the best";
  EXPECT_FALSE(fs::exists(folder_ + "/step-000000000002.pt"));
  barrier();
}

// Its label can be read, but not what is in it.
TEST_F(CheckpointFile, OneThatWasFoundDamagedTakesNoPlaceOfTheKept) {
  const auto file = [&](int step) { return torch_detail::checkpoint_path(folder_, step); };
  const auto kept = [&] {
    std::string steps;
    for (const int step : {1, 2, 3, 4}) {
      if (fs::exists(file(step))) steps += std::to_string(step);
    }
    barrier();
    return steps;
  };
  Checkpoints checkpoints(folder_, {.keep_last = 2, .in_background = false});
  for (const int step : {1, 2}) checkpoints.save(step);
  if (rank() == 0) {
    std::fstream damaged(file(2), std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(file(2)) / 2);
    damaged.seekg(middle);
    const char byte = static_cast<char>(damaged.get() ^ 1);
    damaged.seekp(middle);
    damaged.put(byte);
  }
  barrier();
  const std::optional<LoadedCheckpoint> found = checkpoints.load_latest();
  EXPECT_TRUE(found && found->step == 1);
  checkpoints.save(3);
  EXPECT_EQ(kept(), "123") << "the damaged one stays, but does not count";
  checkpoints.save(4);
  EXPECT_EQ(kept(), "234");
  checkpoints.save(2);  // whole again
  EXPECT_EQ(kept(), "24");
}

// As the first save() of another job in this folder, while this one writes.
TEST_F(CheckpointFile, AJobThatTidiesUpLeavesWhatAnotherOneIsWriting) {
  if (rank() != 0) return;
  const std::string path = folder_ + "/step-000000000001.pt", left = path + ".tmp1";
  std::ofstream(left) << "of a job that was killed";
  c10::impl::GenericDict content = dictionary();
  content.insert("tensor", at::zeros({2 << 20}));
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) torch_detail::remove_unfinished(folder_);
  });
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(test::error_of([&] {
                torch_detail::write_checkpoint_file(path, {.number = 1, .step = 1, .metric = {}},
                                                    content);
              }),
              "no error");
  }
  is_over = true;
  other.join();
  EXPECT_EQ(test::error_of([&] { torch_detail::read_checkpoint_file(path); }), "no error");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(CheckpointFile, ANaNHasNoSign) {
  Checkpoints checkpoints(folder_, {.in_background = false});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  checkpoints.save(1, {.metric = std::copysign(nan, rank() == 0 ? -1.0 : 1.0)});
  EXPECT_TRUE(std::isnan(*checkpoints.load_latest()->metric));
}

// What Python reads of them is tried in chain_of_jobs.
TEST_F(CheckpointFile, ListsOfAnyTypeComeBackAsPlainOnes) {
  Checkpoints checkpoints(folder_, {.in_background = false});
  const std::vector<at::Tensor> tensors{at::ones({2}), at::zeros({3})};
  c10::impl::GenericDict inner = dictionary();
  inner.insert("counts", std::vector<int64_t>{1, 2});
  inner.insert("both", c10::ivalue::Tuple::create({std::vector<bool>{true}, std::string("ä")}));
  checkpoints.save(1, {.values = {{"losses", std::vector<double>{0.5, 0.25}},
                                  {"tensors", tensors},
                                  {"inner", inner},
                                  {"no", c10::IValue()}}});
  const std::map<std::string, c10::IValue> found = checkpoints.load_latest()->values;
  const auto expect_plain = [](const c10::IValue& list, size_t size) {
    EXPECT_EQ(list.toList().elementType()->kind(), c10::TypeKind::AnyType);
    ASSERT_EQ(list.toListRef().size(), size);
  };
  expect_plain(found.at("losses"), 2);
  EXPECT_EQ(found.at("losses").toListRef()[1].toDouble(), 0.25);
  expect_plain(found.at("tensors"), 2);
  EXPECT_TRUE(found.at("tensors").toListRef()[0].toTensor().equal(tensors[0]));
  const c10::impl::GenericDict back = found.at("inner").toGenericDict();
  expect_plain(back.at("counts"), 2);
  EXPECT_EQ(back.at("counts").toListRef()[0].toInt(), 1);
  const c10::IValue tuple = back.at("both");
  const auto& both = tuple.toTupleRef().elements();
  expect_plain(both[0], 1);
  EXPECT_TRUE(both[0].toListRef()[0].toBool());
  EXPECT_EQ(both[1].toStringRef(), "ä");
  EXPECT_TRUE(found.at("no").isNone());

  c10::impl::GenericList texts(c10::AnyType::get());
  texts.push_back(std::string("\xff\xfe"));
  EXPECT_THAT(test::error_of([&] {
                checkpoints.save(2, {.values = {{"texts", texts}}});
              }),
              AllOf(HasSubstr("invalid argument"), HasSubstr("the value \"texts\" has a text")));
  EXPECT_EQ(checkpoints.load_latest()->step, 1);
}

// Python's torch.load() would refuse the whole file for one of them.
TEST_F(CheckpointFile, ValuesThatPythonCantReadAreNamed) {
  Checkpoints checkpoints(folder_, {.in_background = false});
  const auto error = [&](const c10::IValue& value) {
    return test::error_of([&] {
      checkpoints.save(1, {.values = {{"mine", c10::ivalue::Tuple::create({value})}}});
    });
  };
  const auto names = [](const char* what) {
    return AllOf(StartsWith("invalid argument"),
                 HasSubstr("the value \"mine\" has a " + std::string(what)));
  };
  EXPECT_THAT(error(at::eye(2).to_sparse()), names("tensor of layout Sparse"));
  EXPECT_THAT(error(at::zeros({2}, at::kUInt16)), names("tensor of dtype UInt16"));
  EXPECT_THAT(error(at::zeros({2}, at::kFloat8_e5m2)), names("tensor of dtype Float8_e5m2"));
  EXPECT_THAT(error(at::Tensor()), names("tensor that is undefined"));
  EXPECT_THAT(error(c10::Storage(at::zeros({2}).storage())), names("Storage"));
  EXPECT_FALSE(checkpoints.load_latest());
}

TEST_F(CheckpointFile, HoldsComplexNumbersAndCopiesOfTensors) {
  Checkpoints checkpoints(folder_);
  const at::Tensor tensor = at::ones({3});
  const c10::complex<double> number(0.5, -2);
  checkpoints.save(1, {.values = {{"number", number}, {"tensor", tensor}}});
  tensor.zero_();
  const auto values = checkpoints.load_latest()->values;
  EXPECT_EQ(values.at("number").toComplexDouble(), number);
  EXPECT_TRUE(values.at("tensor").toTensor().equal(at::ones({3})));
}

TEST_F(CheckpointFile, TensorsThatCantBeWrittenBackAreRefusedWhenTheyAreSaved) {
  Checkpoints checkpoints(folder_, {.in_background = false});
  checkpoints.add("masks", {{"causal", at::ones({1, 2}).expand({3, 2})}});
  EXPECT_THAT(test::error_of([&] { checkpoints.save(1); }),
              AllOf(StartsWith("invalid argument: Checkpoints::save: on rank 0: tensor \"causal\""),
                    HasSubstr("expanded")));
  EXPECT_FALSE(checkpoints.load_latest());
}

// A model that was made in inference mode, with buffers that differ between ranks.
TEST_F(CheckpointFile, IsLoadedInInferenceMode) {
  const auto mean_of_rank = [] { return at::full({2}, rank() + 1.0); };
  {
    torch::nn::BatchNorm1d norm(2);
    norm->running_mean.copy_(mean_of_rank());
    Checkpoints checkpoints(folder_, {.in_background = false});
    checkpoints.add("norm", *norm).save(1);
  }
  const c10::InferenceMode inference;
  torch::nn::BatchNorm1d norm(2);
  Checkpoints checkpoints(folder_);
  checkpoints.add("norm", *norm);
  ASSERT_TRUE(checkpoints.load_latest());
  EXPECT_TRUE(norm->running_mean.equal(mean_of_rank())) << norm->running_mean;
}

TEST_F(CheckpointFile, BuffersThatDifferComeBackBehindThoseThatDoNot) {
  const auto variance_of_rank = [] { return at::full({2}, rank() + 2.0); };
  torch::nn::BatchNorm1d norm(2), again(2);  // whose means are alike
  norm->running_var.copy_(variance_of_rank());
  Checkpoints(folder_, {.in_background = false}).add("norm", *norm).save(1);
  ASSERT_TRUE(Checkpoints(folder_).add("norm", *again).load_latest());
  EXPECT_TRUE(again->running_var.equal(variance_of_rank())) << again->running_var;
}

// On another number of ranks. A dropout that is alike on all of them would be one of a single rank.
TEST_F(CheckpointFile, GivesOtherRanksRandomNumbersOfTheirOwn) {
  at::manual_seed(7);
  c10::impl::GenericDict state = dictionary();
  state.insert(torch_detail::kRandom, torch_detail::random_states());
  const torch_detail::SavedOfRanks saved{size() + 1, /*same_ranks=*/false, {state}};
  const auto drawn_by_all = [&](uint64_t seed_before) {
    at::manual_seed(seed_before);
    torch_detail::load_rank_state({}, saved, {});
    return allgather(at::rand({1}, at::kDouble));
  };
  const at::Tensor drawn = drawn_by_all(8);
  EXPECT_NE(drawn[0].item<double>(), drawn[1].item<double>());
  EXPECT_TRUE(drawn_by_all(9).equal(drawn)) << "what was drawn before does not count";
}

TEST_F(CheckpointFile, TheLatestIsTheOneThatIsStillBeingWritten) {
  Checkpoints checkpoints(folder_);
  at::Tensor large = at::zeros({2 << 20});
  checkpoints.add("large", {{"large", large}});
  checkpoints.save(1);
  EXPECT_EQ(checkpoints.latest(), folder_ + "/step-000000000001.pt");
  checkpoints.save(2);
  EXPECT_EQ(checkpoints.load_latest()->step, 2);
}

TEST_F(CheckpointFile, WhyItCantBeOpenedIsSaid) {
  Checkpoints checkpoints(folder_);
  EXPECT_THAT(test::error_of([&] { checkpoints.load(folder_ + "/none.pt"); }),
              HasSubstr(folder_ + "/none.pt: can't be opened: No such file"));
}

// A folder that can't be reached must not count as one without checkpoints: the job would begin
// anew.
TEST_F(CheckpointFile, AFolderThatCantBeReachedIsAnError) {
  const std::string folder = folder_ + "/inner";
  Checkpoints checkpoints(folder, {.in_background = false});
  EXPECT_FALSE(checkpoints.load_latest());
  checkpoints.save(1);
  barrier();
  if (rank() == 0) {
    fs::remove_all(folder);
    fs::create_symlink(folder, folder);
  }
  barrier();
  EXPECT_THAT(test::error_of([&] { checkpoints.load_latest(); }),
              AllOf(HasSubstr(folder + " can't be listed"), HasSubstr("symbolic links")));
  barrier();
  if (rank() == 0) fs::remove(folder);
  barrier();
  EXPECT_FALSE(checkpoints.load_latest());
}

// Rank 0 alone reads the file, and all must hear what is wrong with it.
TEST_F(CheckpointFile, AWrongContentIsTheErrorOfAllRanks) {
  const std::string path = folder_ + "/step-000000000001.pt";
  c10::impl::GenericList no_ranks(c10::AnyType::get()), numbers(c10::AnyType::get());
  numbers.push_back(5);
  // The right content is a list with a dictionary for each rank.
  for (const c10::IValue& ranks : {c10::IValue(5), c10::IValue(no_ranks), c10::IValue(numbers)}) {
    if (rank() == 0) {
      c10::impl::GenericDict content = dictionary();
      content.insert(torch_detail::kValues, dictionary());
      content.insert(torch_detail::kRanks, ranks);
      torch_detail::write_checkpoint_file(path, {.number = 1, .step = 1, .metric = {}}, content);
    }
    barrier();
    Checkpoints checkpoints(folder_);
    at::Tensor value = at::zeros({3});
    checkpoints.add("value", {{"value", value}});
    EXPECT_THAT(test::error_of([&] { checkpoints.load(path); }),
                AllOf(HasSubstr(path), HasSubstr("was not written by Horon")));
    barrier();
  }
}

}  // namespace
}  // namespace horon::checkpoint_file_test
