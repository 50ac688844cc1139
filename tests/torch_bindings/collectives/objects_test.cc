// Values and bytes from rank to rank, and the check that all ranks hold the same tensors.
#include "horon/torch_bindings/collectives/objects.h"

#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/guards/rank_zero.h"
#include "horon/torch_bindings/guards/save0.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon::objects_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing_support::error_of;

bool is_last() { return rank() == size() - 1; }

// The bytes of rank r: their number differs between ranks, 0 on rank 0; all values of a byte occur.
std::string bytes_of(int r) {
  std::string bytes;
  for (int i = 0; i < 300 * r; ++i) bytes.push_back(static_cast<char>(i + r));
  return bytes;
}

// All ranks, and if there are three a set without rank 0.
void for_each_set(const std::function<void(const ProcessSet&)>& check) {
  check({});
  if (size() < 3) return;
  std::vector<int> ranks;
  for (int r = 1; r < size(); ++r) ranks.push_back(r);
  const ProcessSet set = add_process_set(ranks);
  if (set.includes_me()) check(set);
  remove_process_set(set);
}

TEST(Bytes, OfAnyLengthFromAnyRoot) {
  for_each_set([](const ProcessSet& set) {
    std::vector<std::string> all;
    for (const int r : set.ranks()) all.push_back(bytes_of(r));
    EXPECT_EQ(allgather_bytes(bytes_of(rank()), {.process_set = set}), all);
    for (const int root : set.ranks()) {
      const ObjectOptions options{.root = root, .process_set = set};
      EXPECT_EQ(broadcast_bytes(bytes_of(rank()), options), bytes_of(root));
      const auto gathered = gather_bytes(bytes_of(rank()), options);
      EXPECT_EQ(gathered, rank() == root ? all : std::vector<std::string>());
      const auto given = rank() == root ? all : std::vector<std::string>();
      EXPECT_EQ(scatter_bytes(given, options), bytes_of(rank()));
    }
  });
}

TEST(Objects, NumbersAndText) {
  enum class Color : uint8_t { Red, Green };
  for_each_set([](const ProcessSet& set) {
    const int root = set.ranks().back();
    const ObjectOptions options{.root = root, .process_set = set};
    EXPECT_EQ(broadcast_object(0.5 + rank(), options), 0.5 + root);
    EXPECT_EQ(broadcast_object(rank() == root, options), true);
    EXPECT_EQ(broadcast_object(rank() == root ? Color::Green : Color::Red, options), Color::Green);
    EXPECT_EQ(broadcast_object(bytes_of(rank()), options), bytes_of(root));
    EXPECT_EQ(allgather_object(rank(), {.process_set = set}), set.ranks());
    const std::vector<std::string> names = gather_object("rank " + std::to_string(rank()), options);
    ASSERT_EQ(names.size(), rank() == root ? static_cast<size_t>(set.size()) : 0);
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(names[i], "rank " + std::to_string(set.ranks()[i]));
    }
  });
}

TEST(Objects, TensorsOfAnyShapeAndDtype) {
  const auto own = [](int r) {
    return r % 2 == 0 ? torch::full({r + 1, 2}, 1.5 * r) : torch::full({r}, r, torch::kLong);
  };
  const std::vector<at::Tensor> all = allgather_object(own(rank()));
  ASSERT_EQ(all.size(), static_cast<size_t>(size()));
  for (int r = 0; r < size(); ++r) EXPECT_TRUE(at::equal(all[r], own(r))) << all[r];
  const std::vector<at::Tensor> list{own(rank()), torch::ones({}), own(rank() + 1)};
  for (int root = 0; root < size(); ++root) {
    const auto got = broadcast_object(list, {.root = root});
    ASSERT_EQ(got.size(), 3);
    EXPECT_TRUE(at::equal(got[0], own(root)));
    EXPECT_TRUE(at::equal(got[2], own(root + 1)));
    const auto gathered = gather_object(list, {.root = root});
    ASSERT_EQ(gathered.size(), rank() == root ? static_cast<size_t>(size()) : 0);
    for (size_t r = 0; r < gathered.size(); ++r) {
      EXPECT_TRUE(at::equal(gathered[r][0], own(static_cast<int>(r))));
    }
  }
  EXPECT_TRUE(at::equal(list[0], own(rank())));  // what was given is not touched
}

TEST(Objects, EachRankGetsItsOwnOfTheRoots) {
  for_each_set([](const ProcessSet& set) {
    for (const int root : set.ranks()) {
      const ObjectOptions options{.root = root, .process_set = set};
      std::vector<double> numbers;
      std::vector<bool> flags;
      std::vector<std::vector<at::Tensor>> lists;
      for (const int r : rank() == root ? set.ranks() : std::vector<int>()) {
        numbers.push_back(r + 0.25);
        flags.push_back(r % 2 == 0);
        lists.emplace_back(static_cast<size_t>(r), at::full({r + 1}, r, at::kLong));
      }
      EXPECT_EQ(scatter_object(numbers, options), rank() + 0.25);
      EXPECT_EQ(scatter_object(flags, options), rank() % 2 == 0);
      const auto list = scatter_object(lists, options);
      ASSERT_EQ(list.size(), static_cast<size_t>(rank()));
      for (const at::Tensor& got : list) {
        EXPECT_TRUE(at::equal(got, at::full({rank() + 1}, rank(), at::kLong)));
      }
    }
  });
}

TEST(Objects, AWrongNumberOfTheRootsIsRefusedOnEveryRank) {
  const std::vector<int> many(static_cast<size_t>(size()) + 1, 7);
  const auto error = [&](const std::vector<int>& of_root, int root) {
    return error_of([&] {
      (void)scatter_object(rank() == root ? of_root : many, {.name = "thing", .root = root});
    });
  };
  for (int root = 0; root < size(); ++root) {
    const std::string who = "\"thing\": the root, rank " + std::to_string(root);
    const std::string ranks = " for " + std::to_string(size()) + " ranks";
    EXPECT_THAT(error(many, root), AllOf(StartsWith("invalid argument"), HasSubstr(who),
                                         HasSubstr(std::to_string(size() + 1) + " parts" + ranks)));
    EXPECT_THAT(error({}, root), AllOf(HasSubstr(who), HasSubstr("0 parts" + ranks)));
  }
  EXPECT_THAT(error({}, size()), AllOf(StartsWith("invalid argument"), HasSubstr("root")));
  EXPECT_EQ(scatter_object(std::vector<int>(static_cast<size_t>(size()), 5)), 5);
}

TEST(Objects, AViewLeavesItsNeighboursBehind) {
  const at::Tensor view = torch::ones({100'000}).slice(0, 10, 13);
  EXPECT_LT(torch_detail::write_object(view).size(), 10'000);
  const at::Tensor got = broadcast_object(view, {.root = size() - 1});
  EXPECT_TRUE(at::equal(got, torch::ones({3})));
}

TEST(Objects, NestedValues) {
  c10::Dict<std::string, int64_t> vocabulary;
  vocabulary.insert("sheep", rank());
  const c10::IValue value(
      c10::ivalue::Tuple::create({c10::IValue(vocabulary), c10::IValue(std::vector<double>{0.5})}));
  const c10::IValue got = broadcast_object(value, {.root = size() - 1});
  const auto& elements = got.toTupleRef().elements();
  EXPECT_EQ(elements[0].toGenericDict().at("sheep").toInt(), size() - 1);
  EXPECT_EQ(elements[1].toDoubleVector(), std::vector<double>{0.5});
}

TEST(Objects, ModulesAreReadIntoTheOneThatIsGiven) {
  torch::nn::BatchNorm1d norm(3);
  norm->running_mean.fill_(rank());
  {
    const torch::NoGradGuard no_grad;
    norm->weight.fill_(rank() + 10);
  }
  const auto got = broadcast_object(norm, {.root = size() - 1});
  EXPECT_EQ(got.ptr(), norm.ptr());
  EXPECT_TRUE(norm->running_mean.eq(size() - 1).all().item<bool>());
  EXPECT_TRUE(norm->weight.eq(size() + 9).all().item<bool>());
  EXPECT_TRUE(norm->weight.requires_grad());
}

TEST(Objects, WhatCannotBeWrittenIsRefusedOnEveryRank) {
  // A capsule has no form in bytes.
  const c10::IValue bad =
      c10::IValue::make_capsule(c10::make_intrusive<torch::CustomClassHolder>());
  const c10::IValue good(int64_t{1});
  const auto says = AllOf(StartsWith("invalid argument"), HasSubstr("can't be serialized"));
  EXPECT_THAT(error_of([&] {
                (void)broadcast_object(is_last() ? bad : good,
                                       {.name = "thing", .root = size() - 1});
              }),
              AllOf(says, HasSubstr("\"thing")));
  EXPECT_THAT(error_of([&] { (void)allgather_object(is_last() ? bad : good); }),
              AllOf(says, HasSubstr("allgather_object.noname")));
  EXPECT_THAT(error_of([&] { (void)gather_object(is_last() ? bad : good); }), says);
  std::vector<c10::IValue> values(static_cast<size_t>(size()), good);
  values.front() = bad;
  EXPECT_THAT(
      error_of([&] { (void)scatter_object(values, {.name = "thing", .root = size() - 1}); }),
      AllOf(says, HasSubstr("\"thing")));
  EXPECT_EQ(broadcast_object(good).toInt(), 1);
}

TEST(Objects, WhatCannotBeReadIsNamed) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  if (is_last()) {
    EXPECT_THAT(error_of([] { (void)broadcast_object(at::Tensor(), {.name = "thing"}); }),
                AllOf(StartsWith("failed"), HasSubstr("\"thing\" of rank 0")));
    EXPECT_THAT(error_of([] { (void)broadcast_object(int16_t{1}, {.name = "number"}); }),
                AllOf(StartsWith("failed"), HasSubstr("types")));
  } else {
    EXPECT_EQ(broadcast_object(std::string("no tensor"), {.name = "thing"}), "no tensor");
    EXPECT_EQ(broadcast_object(int64_t{5}, {.name = "number"}), 5);
  }
  EXPECT_THAT(
      error_of([] { (void)broadcast_bytes("x", {.name = "b", .root = is_last() ? 1 : 0}); }),
      StartsWith("mismatch"));
  barrier();
}

torch::nn::Sequential make_net() {
  torch::manual_seed(7);
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                               torch::nn::Linear(4, 2));
}

TEST(Replicas, EqualOnesInAnyOrderAndLayout) {
  const torch::nn::Sequential net = make_net();
  check_replicas_equal(*net);
  check_replicas_equal(net->parameters());
  check_replicas_equal({});
  const at::Tensor nan = torch::full({2}, NAN);
  const at::Tensor plain = torch::arange(6.0).reshape({2, 3});
  const at::Tensor strided = plain.t().contiguous().t();
  if (rank() == 0) {
    check_replicas_equal({{"nan", nan}, {"x", plain}, {"none", torch::ones({0, 3})}});
  } else {
    check_replicas_equal({{"x", strided}, {"none", torch::ones({0, 3})}, {"nan", nan}});
  }
}

TEST(Replicas, BuffersOfAModuleAreCalledSo) {
  const torch::nn::Sequential net = make_net();
  net->named_buffers()["1.running_mean"].fill_(rank());
  if (size() > 1) {
    EXPECT_THAT(error_of([&] { check_replicas_equal(*net); }),
                AllOf(StartsWith("mismatch"), HasSubstr("buffer \"1.running_mean\""),
                      HasSubstr("named_parameters()"), HasSubstr("SyncBatchNorm")));
  }
  check_replicas_equal(net->named_parameters());
  broadcast_parameters(net->named_buffers());
  check_replicas_equal(*net);
}

TEST(Replicas, EveryKindOfDifferenceIsNamed) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  const std::string last = "rank " + std::to_string(size() - 1);
  const auto differs = [&](const NamedTensors& common, const NamedTensors& of_last) {
    return error_of([&] { check_replicas_equal(is_last() ? of_last : common); });
  };
  const at::Tensor x = torch::arange(35.0);
  const at::Tensor ones = torch::ones({2, 3});
  for (int64_t i = 0; i < x.numel(); ++i) {
    at::Tensor other = x.clone();
    other[i] += 1e-3;
    EXPECT_THAT(differs({{"a", ones}, {"x", x}, {"z", x}}, {{"a", ones}, {"x", other}, {"z", x}}),
                AllOf(StartsWith("mismatch"), HasSubstr("check_replicas_equal"),
                      HasSubstr("\"x\" of rank 0 differs on " + last), Not(HasSubstr("\"z\""))));
  }
  EXPECT_THAT(differs({{"x", ones}}, {{"x", ones.t()}}),
              AllOf(StartsWith("mismatch"), HasSubstr("[2, 3]"), HasSubstr("[3, 2]")));
  EXPECT_THAT(differs({{"x", ones}}, {{"x", ones.to(torch::kDouble)}}),
              AllOf(HasSubstr("float32"), HasSubstr("float64")));
  EXPECT_THAT(differs({{"x", torch::zeros({2})}}, {{"x", -torch::zeros({2})}}),
              StartsWith("mismatch"));
  EXPECT_THAT(
      differs({{"x", x}, {"y", x}}, {{"y", x}, {"extra", x}}),
      AllOf(HasSubstr(last + " has no tensor \"x\""), HasSubstr(last + " has tensor \"extra\"")));
  EXPECT_THAT(differs({{"x", x}, {"y", x}}, {{"x", ones}, {"y", ones}}),
              AllOf(HasSubstr("\"x\""), HasSubstr("; 2 differ in all")));
}

TEST(Replicas, ComplexTensorsAndRanksThatHaveJoined) {
  const at::Tensor x = torch::complex(torch::ones({2}), torch::ones({2}));
  check_replicas_equal({{"x", x}});
  const at::Tensor other = is_last() ? x * 2 : x;
  if (size() > 1) {
    EXPECT_THAT(error_of([&] { check_replicas_equal({{"x", other}}); }), HasSubstr("\"x\""));
  }
  // A rank that has joined holds nothing that counts.
  if (!is_last()) check_replicas_equal({{"x", x}});
  join();
}

TEST(Objects, OfARankThatHasJoined) {
  if (size() == 1) return;
  if (!is_last()) {
    const std::string want = "rank " + std::to_string(size() - 1) + " has called join()";
    EXPECT_THAT(error_of([] { (void)allgather_object(0.5, {.name = "number"}); }),
                AllOf(StartsWith("failed: object \"number\""), HasSubstr(want)));
    EXPECT_THAT(error_of([] { (void)allgather_object(std::string()); }), HasSubstr(want));
    EXPECT_THAT(error_of([] { (void)allgather_object(at::ones({2})); }), HasSubstr(want));
    EXPECT_THAT(
        error_of([] { (void)scatter_object(std::vector<int>(static_cast<size_t>(size()))); }),
        HasSubstr("rank " + std::to_string(size() - 1) + " has joined, and scatter needs"));
  }
  join();
}

TEST(OnAllRanks, SucceedsTogetherOrFailsTogether) {
  EXPECT_EQ(on_all_ranks([] { return std::string("read"); }), "read");
  int runs = 0;
  on_all_ranks([&] { ++runs; });
  EXPECT_EQ(runs, 1);
  const auto fails = [](int culprit, const std::function<void()>& failure) {
    return error_of([&] {
      on_all_ranks(
          [&] {
            if (rank() >= culprit) failure();
          },
          {.name = "data"});
    });
  };
  const int last = size() - 1;
  const std::string on_last = "data: on rank " + std::to_string(last) + ": ";
  EXPECT_EQ(fails(last, [] { throw std::runtime_error("no file\nand more"); }),
            "failed: " + on_last + "no file");
  EXPECT_EQ(fails(last, [] { throw Error(ErrorCode::Limit, "too large"); }),
            "limit: " + on_last + "too large");
  EXPECT_THAT(fails(last, [] { throw 3; }), HasSubstr(on_last));
  EXPECT_THAT(fails(last, [] { torch::ones({2}) + torch::ones({3}); }),
              AllOf(HasSubstr(on_last), HasSubstr("size"), Not(HasSubstr("frame"))));
  EXPECT_THAT(fails(0, [] { throw std::runtime_error(std::to_string(rank())); }),
              HasSubstr("on rank 0: 0"));
  for_each_set([&](const ProcessSet& set) {
    EXPECT_EQ(on_all_ranks([] { return 5; }, {.process_set = set}), 5);
  });
}

TEST(OnAllRanks, WorkThatTheRanksCantAgreeOnIsNotDone) {
  const std::string path = broadcast_object(
      (std::filesystem::temp_directory_path() / ("alone_" + std::to_string(getpid()))).string());
  int runs = 0;
  const auto work = [&] { ++runs; };
  {
    const RankZeroScope scope;
    EXPECT_THAT(error_of([&] { on_all_ranks(work); }),
                AllOf(StartsWith("invalid argument: \"on_all_ranks\": "), HasSubstr("alone")));
    EXPECT_THAT(error_of([&] { save0(torch::ones({2}), path); }),
                AllOf(StartsWith("invalid argument: \"save0\": "), HasSubstr("alone")));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  const ProcessSet first = add_process_set({0});
  if (rank() > 0) {
    EXPECT_THAT(error_of([&] { on_all_ranks(work, {.process_set = first}); }),
                HasSubstr("is not in process set"));
  }
  remove_process_set(first);
  EXPECT_THAT(error_of([&] { on_all_ranks(work, {.name = "report", .worker = size()}); }),
              StartsWith("invalid argument: report: on rank 0: the worker, rank " +
                         std::to_string(size()) + ", is not in the process set, whose ranks are"));
  EXPECT_EQ(runs, 0);
  on_all_ranks(work);
  EXPECT_EQ(runs, 1);
}

TEST(Replicas, ThreeRanksAreToldApart) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  const at::Tensor x = torch::full({3}, rank() == 0 ? 0.0 : 1.0);
  EXPECT_THAT(error_of([&] {
                check_replicas_equal({{"x", x}});
              }),
              AllOf(StartsWith("mismatch"), HasSubstr("of rank 0 differs on ranks 1")));
  for_each_set([&](const ProcessSet& set) {
    if (!set.is_world()) check_replicas_equal({{"x", x}}, set);
  });
}

TEST(Replicas, WrongCallsAreRefusedOnEveryRank) {
  const at::Tensor x = torch::ones({2});
  const auto refused = [](const NamedTensors& tensors) {
    return error_of([&] {
      check_replicas_equal(is_last() ? tensors : NamedTensors({{"x", torch::ones({2})}}));
    });
  };
  const std::string last = "rank " + std::to_string(size() - 1);
  const auto says = [&](const char* why) {
    return AllOf(StartsWith("invalid argument"), HasSubstr(last), HasSubstr("\"x\""),
                 HasSubstr(why));
  };
  EXPECT_THAT(
      refused({{"x", x}, {"x", torch::ones({3})}}),
      AllOf(says("two tensors are called"), HasSubstr("shape [2]"), HasSubstr("shape [3]")));
  EXPECT_THAT(refused({{"x", at::Tensor()}}), says("undefined"));
  EXPECT_THAT(refused({{"x", torch::ones({2, 2}).to_sparse()}}), says("parse"));
  check_replicas_equal({{"x", x}, {"x", x}});  // one tensor, named twice
}

}  // namespace
}  // namespace horon::objects_test
