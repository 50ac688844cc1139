// Training that goes on from a checkpoint, files that are damaged, and which files are kept.
#include "horon/torch_bindings/checkpoint/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <unistd.h>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/checkpoint/checkpoint_training.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoint_parts.h"
#include "horon/torch_bindings/checkpoint/rank_state.h"
#include "horon/torch_bindings/checkpoint/sha256.h"
#include "horon/torch_bindings/collectives/bytes.h"

namespace horon::checkpoints_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;
using testing_support::Training;

// A folder of rank 0, whose name all ranks know.
class CheckpointFiles : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = "horon_checkpoints_" + std::to_string(getpid());
    folder_ = broadcast_bytes((fs::temp_directory_path() / name).string());
  }
  void TearDown() override {
    barrier();
    if (rank() == 0) fs::remove_all(folder_);
  }
  std::string file(int step) const {
    return folder_ + "/step-00000000000" + std::to_string(step) + ".pt";
  }
  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Writes on rank 0; the other ranks wait.
  static void write(const std::string& path, const std::string& bytes) {
    if (rank() == 0) std::ofstream(path, std::ios::binary) << bytes;
    barrier();
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      found.push_back(entry.path().filename().string().substr(16));
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string folder_;
};

TEST_F(CheckpointFiles, GoingOnEqualsNeverHavingStopped) {
  std::string want;
  {
    Training straight(folder_ + "/unused");
    straight.run(10);
    want = straight.bits();
  }
  {
    Training first(folder_);
    EXPECT_FALSE(first.checkpoints.load_latest()) << "nothing is there yet";
    first.run(5);
    first.checkpoints.save(5, {.metric = 0.25, .values = {{"note", "five"}, {"epoch", 0}}});
    first.run(2);  // training goes on while the file is written
  }
  Training second(folder_);
  second.run(1);
  torch::manual_seed(12345);
  const auto found = second.checkpoints.load_latest();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 5);
  EXPECT_EQ(found->ranks, size());
  EXPECT_EQ(found->metric, 0.25);
  EXPECT_EQ(found->values.at("note").toStringRef(), "five");
  EXPECT_EQ(found->values.at("epoch").toInt(), 0);
  EXPECT_EQ(found->path, file(5));
  second.run(5);
  EXPECT_EQ(second.bits(), want);
}

TEST_F(CheckpointFiles, HoldWhatWasThereWhenSaveWasCalled) {
  Checkpoints checkpoints(folder_);
  at::Tensor large = torch::full({300, 1000}, 1.5);
  at::Tensor tied = large;
  at::Tensor half = torch::arange(6).to(torch::kBFloat16).view({2, 3}).t();
  checkpoints.add("tensors", {{"large", large}, {"tied", tied}, {"half", half}});
  checkpoints.save(1);
  large.fill_(-1);
  half.fill_(0);
  checkpoints.wait();
  ASSERT_TRUE(checkpoints.load_latest());
  EXPECT_TRUE(large.eq(1.5).all().item<bool>());
  EXPECT_TRUE(torch::equal(half, torch::arange(6).to(torch::kBFloat16).view({2, 3}).t()));
  if (rank() == 0) {
    EXPECT_LT(fs::file_size(file(1)), 1300000u) << "a tied tensor stands there once";
  }
}

// Also the program's own lists. Here it changes a list as early as it can.
TEST_F(CheckpointFiles, HoldTheListsThatWereThere) {
  struct Changing {
    at::Tensor tensor;
    void save(torch::serialize::OutputArchive& /*archive*/) const { tensor.fill_(-1); }
    void load(torch::serialize::InputArchive& /*archive*/) const {}
  } changing{torch::ones({2})};
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(changing.tensor);
  Checkpoints checkpoints(folder_);
  checkpoints.add("changing", changing);
  checkpoints.save(1, {.values = {{"list", list}}});
  const c10::IValue found = checkpoints.load(file(1)).values.at("list");
  EXPECT_TRUE(found.toList().get(0).toTensor().equal(torch::ones({2})));
}

// The state of each kind of optimizer, and of one that only save() knows.
TEST_F(CheckpointFiles, OptimizersOfAllKinds) {
  const auto make = [](int kind,
                       std::vector<at::Tensor> p) -> std::unique_ptr<torch::optim::Optimizer> {
    switch (kind) {
      case 0:
        return std::make_unique<torch::optim::AdamW>(
            p, torch::optim::AdamWOptions(0.01).amsgrad(true));
      case 1:
        return std::make_unique<torch::optim::RMSprop>(
            p, torch::optim::RMSpropOptions(0.01).momentum(0.5));
      case 2:
        return std::make_unique<torch::optim::LBFGS>(p,
                                                     torch::optim::LBFGSOptions(0.1).max_iter(2));
      default: {
        struct Own : torch::optim::Adam {
          using Adam::Adam;
        };
        return std::make_unique<Own>(p, torch::optim::AdamOptions(0.02));
      }
    }
  };
  for (int kind = 0; kind < 4; ++kind) {
    const auto weights = [] { return torch::linspace(-1, 1, 8).set_requires_grad(true); };
    const auto train = [](torch::optim::Optimizer& optimizer, const at::Tensor& w, int steps) {
      for (int i = 0; i < steps; ++i) {
        optimizer.step([&] {
          optimizer.zero_grad();
          at::Tensor loss = (w.pow(4) + w.sin()).sum();
          loss.backward();
          return loss;
        });
      }
    };
    at::Tensor straight = weights();
    train(*make(kind, {straight}), straight, 6);
    const std::string folder = folder_ + "/" + std::to_string(kind);
    at::Tensor w = weights();
    {
      const auto optimizer = make(kind, {w});
      Checkpoints checkpoints(folder, {.in_background = false});
      checkpoints.add("w", {{"w", w}}).add("optimizer", *optimizer);
      train(*optimizer, w, 3);
      checkpoints.save(3);
    }
    at::Tensor again = weights();
    const auto optimizer = make(kind, {again});
    Checkpoints checkpoints(folder);
    checkpoints.add("w", {{"w", again}}).add("optimizer", *optimizer);
    ASSERT_TRUE(checkpoints.load_latest());
    train(*optimizer, again, 3);
    EXPECT_TRUE(torch::equal(again, straight)) << "kind " << kind;
  }
}

// What each rank has of its own may be large: it goes to that rank alone.
TEST(SavedOfRanks, EachRankGetsItsOwn) {
  using torch_detail::text_dictionary;
  const auto state_of = [](int rank) {
    c10::impl::GenericDict state = text_dictionary();
    const int64_t mark = 10 * rank;
    state.insert("sampler", mark);
    state.insert("random", mark + 1);
    state.insert("buffers", mark + 2);
    return state;
  };
  const auto saved_by = [&](int ranks) {
    c10::impl::GenericList states(c10::AnyType::get());
    for (int r = 0; r < ranks && rank() == 0; ++r) states.push_back(state_of(r));
    return torch_detail::share_states(states, ranks);
  };
  const auto number = [](const c10::IValue& state, const char* name) {
    return torch_detail::value_in(state, name).toInt();
  };
  const torch_detail::SavedOfRanks own = saved_by(size());
  ASSERT_EQ(own.states.size(), 1u);
  EXPECT_TRUE(own.same_ranks);
  EXPECT_EQ(number(own.states[0], "sampler"), 10 * rank());
  EXPECT_EQ(number(own.states[0], "random"), 10 * rank() + 1);
  EXPECT_EQ(number(own.states[0], "buffers"), 10 * rank() + 2);

  const torch_detail::SavedOfRanks all = saved_by(size() + 1);
  EXPECT_FALSE(all.same_ranks);
  ASSERT_EQ(all.states.size(), static_cast<size_t>(size() + 1));
  EXPECT_EQ(all.ranks, size() + 1);
  EXPECT_EQ(number(all.states[0], "random"), 1);  // from which new ones are made
  for (int r = 0; r <= size(); ++r) {
    const c10::IValue& state = all.states[static_cast<size_t>(r)];
    EXPECT_EQ(number(state, "sampler"), 10 * r);
    EXPECT_EQ(state.toGenericDict().size(), r == 0 ? 2u : 1u);
  }
}

TEST_F(CheckpointFiles, TheLastAndTheBestAreKept) {
  Checkpoints checkpoints(folder_, {.keep_last = 2, .keep_best = 1});
  at::Tensor value = torch::zeros({1});
  checkpoints.add("value", {{"value", value}});
  EXPECT_EQ(checkpoints.latest(), std::nullopt);
  const std::vector<double> metrics = {5, 2, std::numeric_limits<double>::quiet_NaN(), 4, 3};
  for (int step = 1; step <= 5; ++step) {
    value.fill_(step);
    checkpoints.save(step, {.metric = metrics[static_cast<size_t>(step - 1)]});
  }
  checkpoints.wait();
  EXPECT_EQ(checkpoints.latest(), file(5));
  EXPECT_EQ(checkpoints.best(), file(2));
  if (rank() == 0) {
    EXPECT_EQ(names(), (std::vector<std::string>{"2.pt", "4.pt", "5.pt"}));
  }
  EXPECT_EQ(checkpoints.load_best()->step, 2);
  EXPECT_EQ(value.item<float>(), 2);
  // Training that goes on from there makes newer ones, whatever their step is.
  value.fill_(30);
  checkpoints.save(3);
  checkpoints.wait();
  EXPECT_EQ(checkpoints.latest(), file(3));
  EXPECT_EQ(checkpoints.load_latest()->step, 3);
  EXPECT_EQ(value.item<float>(), 30);
}

class DamagedFiles : public CheckpointFiles {
 protected:
  void SetUp() override {
    CheckpointFiles::SetUp();
    Checkpoints checkpoints(folder_, {.keep_last = 0});
    checkpoints.add("value", {{"value", value_}});
    for (int step = 1; step <= 2; ++step) {
      value_.fill_(step);
      checkpoints.save(step);
    }
    checkpoints.wait();
    good_ = read(file(2));
  }
  // What load() says of the newest file; then the one before it is taken.
  std::string complaint() {
    Checkpoints checkpoints(folder_);
    checkpoints.add("value", {{"value", value_}});
    value_.fill_(0);
    std::string text = error_of([&] { checkpoints.load(file(2)); });
    EXPECT_EQ(value_[0].item<float>(), 0) << "nothing was loaded";
    const auto found = checkpoints.load_latest();
    EXPECT_TRUE(found && found->step == 1);
    EXPECT_EQ(value_[0].item<float>(), 1);
    return text;
  }
  at::Tensor value_ = torch::zeros({1000});
  std::string good_;
};

TEST_F(DamagedFiles, AreNamedAndTheOneBeforeIsTaken) {
  std::string damaged = good_;
  damaged[damaged.size() / 2] ^= 1;
  write(file(2), damaged);
  EXPECT_THAT(complaint(),
              AllOf(HasSubstr(file(2)), HasSubstr("is damaged"), HasSubstr("SHA-256")));
  damaged = good_;
  damaged[damaged.size() - 150] ^= 1;  // in its label
  write(file(2), damaged);
  EXPECT_THAT(complaint(), AllOf(HasSubstr(file(2)), HasSubstr("is damaged")));
  write(file(2), good_.substr(0, good_.size() - 1));
  EXPECT_THAT(complaint(), AllOf(HasSubstr(file(2)), HasSubstr("is truncated")));
  write(file(2), good_.substr(0, 100));
  EXPECT_THAT(complaint(), AllOf(HasSubstr(file(2)), HasSubstr("100 bytes")));
  write(file(2), "");
  EXPECT_THAT(complaint(), AllOf(HasSubstr(file(2)), HasSubstr("is truncated")));
  if (rank() == 0) torch::save(value_, file(2));
  barrier();
  EXPECT_THAT(complaint(), AllOf(HasSubstr(file(2)), HasSubstr("was not written by Horon")));
  write(file(1), "x");
  Checkpoints checkpoints(folder_);
  checkpoints.add("value", {{"value", value_}});
  const auto names_both = AllOf(HasSubstr("no checkpoint can be read"), HasSubstr(file(1)),
                                HasSubstr(file(2)), HasSubstr("move them away"));
  EXPECT_THAT(error_of([&] { checkpoints.load_latest(); }), names_both);
  EXPECT_THAT(error_of([&] { checkpoints.load_best(); }), HasSubstr("with a metric can be read"));
  EXPECT_THAT(error_of([&] { checkpoints.load(folder_ + "/none.pt"); }),
              AllOf(HasSubstr("none.pt"), HasSubstr("can't be opened"), Not(HasSubstr("away"))));
  EXPECT_EQ(checkpoints.latest(), std::nullopt);
}

TEST_F(DamagedFiles, StateTheHashThatSha256sumPrints) {
  torch_detail::Sha256 abc;
  abc.add("abc", 3);
  EXPECT_EQ(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  torch_detail::Sha256 million;
  for (int i = 0; i < 1000; ++i) million.add(std::string(1000, 'a').data(), 1000);
  EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  if (rank() != 0) return;
  torch_detail::Sha256 hash;
  hash.add(good_.data(), good_.size() - 64);
  EXPECT_EQ(hash.hex(), good_.substr(good_.size() - 64));
}

TEST_F(CheckpointFiles, ThatDoNotFitSayWhy) {
  at::Tensor a = torch::ones({2, 3});
  torch::optim::SGD sgd({a}, 0.1);
  {
    Checkpoints checkpoints(folder_, {.in_background = false});
    checkpoints.add("model", {{"a", a}}).add("optimizer", sgd);
    checkpoints.save(1);
    EXPECT_THAT(error_of([&] { checkpoints.add("model", {{"a", a}}); }), HasSubstr("is taken"));
    EXPECT_THAT(error_of([&] { checkpoints.add("values", {{"a", a}}); }), HasSubstr("is reserved"));
  }
  const auto refusal = [&](const std::function<void(Checkpoints&)>& add) {
    Checkpoints checkpoints(folder_);
    add(checkpoints);
    const std::string text = error_of([&] { checkpoints.load_latest(); });
    EXPECT_THAT(text, AllOf(StartsWith("invalid argument"), HasSubstr(file(1))));
    return text;
  };
  at::Tensor b = torch::zeros({3, 2});
  at::Tensor fits = torch::zeros({2, 3});
  EXPECT_THAT(refusal([&](Checkpoints& c) {
                c.add("model", {{"a", b}});
              }),
              HasSubstr("its tensor \"a\" is float32 [2, 3], but here it is float32 [3, 2]"));
  EXPECT_THAT(refusal([&](Checkpoints& c) {
                c.add("model", {{"a", fits}, {"b", b}});
              }),
              HasSubstr("it has no tensor \"b\""));
  EXPECT_THAT(refusal([&](Checkpoints& c) {
                c.add("net", {{"a", fits}});
              }),
              HasSubstr("\"net\": it holds nothing of that name"));
  EXPECT_THAT(refusal([&](Checkpoints& c) {
                c.add("optimizer", {{"a", fits}});
              }),
              HasSubstr("it has no tensor \"a\""));
  torch::optim::Adam adam({a}, 0.1);
  EXPECT_THAT(refusal([&](Checkpoints& c) { c.add("optimizer", adam); }),
              HasSubstr("it holds a torch::optim::SGD, but here it is a torch::optim::Adam"));
  torch::optim::SGD more({a, b}, 0.1);
  EXPECT_THAT(refusal([&](Checkpoints& c) {
                c.add("model", {{"a", fits}}).add("optimizer", more);
              }),
              HasSubstr("its parameter 1 is none, but here it is float32 [3, 2] of group 0"));
  EXPECT_TRUE(fits.eq(0).all().item<bool>()) << "nothing was loaded";
}

// Told by the next call, on all ranks; after that saving works again.
TEST_F(CheckpointFiles, ErrorsOfWritingAreTold) {
  at::Tensor a = torch::ones({4});
  Checkpoints checkpoints(folder_);
  checkpoints.add("a", {{"a", a}});
  if (rank() == 0) fs::remove_all(folder_);
  barrier();
  checkpoints.save(1);
  EXPECT_THAT(error_of([&] { checkpoints.save(2); }),
              AllOf(HasSubstr(file(1)), HasSubstr("can't be created"), HasSubstr("No such file")));
  if (rank() == 0) fs::create_directories(folder_);
  barrier();
  checkpoints.save(2);
  checkpoints.wait();
  EXPECT_EQ(checkpoints.latest(), file(2));
  // What a killed job has left is taken out by who writes; who only reads leaves alone what another
  // job may be writing. A folder that can't be made is an error.
  write(folder_ + "/step-000000000009.pt.tmp17", "half a file");
  Checkpoints next(folder_);
  next.add("a", {{"a", a}});
  EXPECT_EQ(next.load_latest()->step, 2);
  EXPECT_TRUE(fs::exists(folder_ + "/step-000000000009.pt.tmp17"));
  barrier();
  next.save(3);
  next.wait();
  EXPECT_FALSE(fs::exists(folder_ + "/step-000000000009.pt.tmp17"));
  EXPECT_THAT(error_of([&] { Checkpoints(file(2) + "/below"); }), HasSubstr("can't be created"));
  if (size() == 1) return;
  EXPECT_THAT(error_of([&] { checkpoints.save(3, {.metric = rank() * 0.5}); }),
              HasSubstr("the metric of rank 0 differs on"));
  EXPECT_THAT(error_of([&] { checkpoints.save(3 + rank()); }),
              HasSubstr("the step of rank 0 differs on"));
}

}  // namespace
}  // namespace horon::checkpoints_test
