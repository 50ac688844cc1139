// Process sets, join, and calls that are wrong on some ranks.
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/autograd.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"

namespace horon::process_set_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;
using testing_support::expect_equal;

at::Tensor mine(int64_t rows = 3) { return at::full({rows}, rank() + 1, at::kLong); }

int64_t sum_over(const ProcessSet& set) {
  int64_t sum = 0;
  for (const int r : set.ranks()) sum += r + 1;
  return sum;
}

void expect_works(const ProcessSet& set) {
  if (!set.includes_me()) return;
  const at::Tensor got = allreduce(mine(), {.op = ReduceOp::Sum, .process_set = set});
  expect_equal(got, at::full({3}, sum_over(set), at::kLong));
}

TEST(ProcessSet, EverySubsetOfTheRanks) {
  const size_t sets_before = process_sets().size();
  for (int bits = 1; bits < 1 << size(); ++bits) {
    std::vector<int> ranks;
    for (int r = size() - 1; r >= 0; --r) {
      if ((bits >> r & 1) != 0) ranks.push_back(r);
    }
    const ProcessSet set = add_process_set(ranks);
    EXPECT_EQ(set.size(), static_cast<int>(ranks.size()));
    EXPECT_EQ(set.includes_me(), (bits >> rank() & 1) != 0);
    expect_works(set);
    if (set.includes_me()) {
      const int root = set.ranks().back();
      expect_equal(broadcast(mine(), {.root = root, .process_set = set}),
                   at::full({3}, root + 1, at::kLong));
      const AlltoallResult swapped =
          alltoall(at::full({set.size()}, rank(), at::kLong), {.process_set = set});
      const std::vector<int> ranks_of_set = set.ranks();
      const std::vector<int64_t> members(ranks_of_set.begin(), ranks_of_set.end());
      expect_equal(swapped.tensor, at::tensor(members, at::kLong));
      const at::Tensor rows = gather(mine(1), {.root = root, .process_set = set});
      EXPECT_EQ(rows.size(0), rank() == root ? set.size() : 0);
      barrier(set);
    }
    remove_process_set(set);
  }
  EXPECT_EQ(process_sets().size(), sets_before);
}

TEST(ProcessSet, OverlappingSetsHaveOrdersOfTheirOwn) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  const ProcessSet low = add_process_set({0, 1});
  const ProcessSet high = add_process_set({1, 2});
  // Rank 0 begins with `low`, rank 2 with `high`, rank 1 submits both and waits for neither.
  std::vector<Handle> handles;
  for (int i = 0; i < 20; ++i) {
    const AllreduceOptions in_low{.name = "same name", .op = ReduceOp::Sum, .process_set = low};
    const AllreduceOptions in_high{.name = "same name", .op = ReduceOp::Sum, .process_set = high};
    std::vector<Handle> round;
    if (rank() == 1) round = {allreduce_async(mine(), in_high), allreduce_async(mine(), in_low)};
    if (rank() == 0) round = {allreduce_async(mine(), in_low)};
    if (rank() == 2) round = {allreduce_async(mine(), in_high)};
    for (const Handle& handle : round) (void)handle.wait();
    if (rank() == 1) {
      expect_equal(round[0].wait(), at::full({3}, 5, at::kLong));
      expect_equal(round[1].wait(), at::full({3}, 3, at::kLong));
    }
  }
  remove_process_set(low);
  remove_process_set(high);
}

TEST(ProcessSet, OneSetDoesNotWaitForAnother) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  const ProcessSet pair = add_process_set({0, 1});
  // The world's collective can't run before rank 2 has come; the pair's can.
  Handle world;
  if (rank() < 2) world = allreduce_async(mine(), {.name = "late", .op = ReduceOp::Sum});
  for (int i = 0; i < 10; ++i) expect_works(pair);
  if (rank() < 2) {
    EXPECT_FALSE(world.poll());
    (void)allreduce(mine(), {.name = "pair is through", .process_set = pair});
  }
  if (rank() == 0) (void)broadcast(at::ones({1}), {.name = "go"});
  if (rank() > 0) (void)broadcast(at::zeros({1}), {.name = "go"});
  if (rank() >= 2) world = allreduce_async(mine(), {.name = "late", .op = ReduceOp::Sum});
  expect_equal(world.wait(), at::full({3}, sum_over({}), at::kLong));
  remove_process_set(pair);
}

TEST(ProcessSet, Helpers) {
  const ProcessSet local = add_local_process_set();
  EXPECT_EQ(local.size(), local_size());
  EXPECT_EQ(local.rank(), local_rank());
  expect_works(local);
  const ProcessSet cross = add_cross_process_set();
  EXPECT_EQ(cross.size(), cross_size());
  expect_works(cross);
  const ProcessSet half = add_even_odd_process_set();
  for (const int r : half.ranks()) EXPECT_EQ(r % 2, rank() % 2);
  expect_works(half);
  for (const ProcessSet& set : process_sets()) {
    if (!set.is_world()) remove_process_set(set);
  }
}

TEST(ProcessSet, WrongUseIsNamedOnEveryRank) {
  EXPECT_THAT(error_of([] { add_process_set({0, size()}); }), HasSubstr("its ranks must be 0 to"));
  EXPECT_THAT(error_of([] { add_process_set({0, 0}); }), HasSubstr("a rank is listed twice"));
  EXPECT_THAT(error_of([] { add_process_set({}); }), HasSubstr("the list of ranks is empty"));
  EXPECT_THAT(error_of([] { remove_process_set({}); }),
              HasSubstr("the set of all ranks can't be removed"));
  if (size() > 1) {
    EXPECT_THAT(error_of([] { add_process_set({rank() == 1 ? 1 : 0}); }),
                AllOf(StartsWith("mismatch"), HasSubstr("of ranks 1 on rank 1")));
    EXPECT_THAT(error_of([] { add_process_set({rank() == 1 ? 99 : 0}); }),
                HasSubstr("its ranks must be 0 to"));
  }
  const ProcessSet first = add_process_set({0});
  if (rank() != 0) {
    EXPECT_THAT(error_of([&] { allreduce(mine(), {.name = "mine", .process_set = first}); }),
                AllOf(HasSubstr("rank " + std::to_string(rank()) + " is not in this process set"),
                      HasSubstr("whose ranks are 0")));
  } else if (size() > 1) {
    EXPECT_THAT(error_of([&] { broadcast(mine(), {.root = 1, .process_set = first}); }),
                HasSubstr("root 1 is not in the process set"));
  }
  remove_process_set(first);
  EXPECT_THAT(error_of([&] { remove_process_set(first); }), HasSubstr("has been removed before"));
  if (rank() == 0) {
    EXPECT_THAT(error_of([&] { allreduce(mine(), {.process_set = first}); }),
                HasSubstr("the set has been removed"));
  }
  expect_works({});
}

TEST(ProcessSet, MismatchNamesRanksOfTheWorld) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  const ProcessSet set = add_process_set({1, 2});
  if (set.includes_me()) {
    EXPECT_THAT(
        error_of([&] { allreduce(at::ones({rank()}), {.name = "it", .process_set = set}); }),
        AllOf(StartsWith("mismatch"), HasSubstr("[1] on rank 1, [2] on rank 2")));
    expect_works(set);
  }
  remove_process_set(set);
}

TEST(ProcessSet, RemovalFailsWhatOnlySomeHaveSubmitted) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  const ProcessSet set = add_process_set({0, 1});
  Handle half;
  if (rank() == 0) half = allreduce_async(mine(), {.name = "half", .process_set = set});
  remove_process_set(set);
  if (rank() == 0) {
    EXPECT_THAT(error_of([&] { half.wait(); }),
                AllOf(HasSubstr("tensor \"half\" can't complete"), HasSubstr("rank 1")));
  }
  expect_works({});
}

// -- join -----------------------------------------------------------------------------------------

TEST(Join, NeutralInEveryReduction) {
  // Rank r has r + 1 batches.
  for (int step = 0; step <= rank(); ++step) {
    const std::string name = "step " + std::to_string(step);
    std::vector<int> here;
    for (int r = step; r < size(); ++r) here.push_back(r);
    const auto with_all = [&](ReduceOp op, double start, auto combine) {
      double want = start;
      for (const int r : here) want = combine(want, r + 2.0);
      at::Tensor x = at::full({4}, rank() + 2.0, at::kFloat);
      const at::Tensor got = allreduce(x, {.name = name, .op = op});
      expect_equal(got, at::full({4}, want, at::kFloat), 1e-6);
    };
    const auto count = static_cast<double>(here.size());
    with_all(ReduceOp::Sum, 0, [](double a, double b) { return a + b; });
    with_all(ReduceOp::Average, 0, [&](double a, double b) { return a + b / count; });
    with_all(ReduceOp::Min, 1e9, [](double a, double b) { return std::min(a, b); });
    with_all(ReduceOp::Max, -1e9, [](double a, double b) { return std::max(a, b); });
    with_all(ReduceOp::Product, 1, [](double a, double b) { return a * b; });
    // Scales apply to the data, not to what stands in for a rank without data.
    const at::Tensor scaled = at::full({2}, rank() + 2.0, at::kFloat);
    const auto with_scale = [&](ReduceOp op, double scale) {
      return allreduce(scaled, {.name = name, .op = op, .prescale = scale})[0].item<double>();
    };
    EXPECT_EQ(with_scale(ReduceOp::Min, 0.5), 0.5 * (here.front() + 2));
    EXPECT_EQ(with_scale(ReduceOp::Min, -2), -2.0 * (here.back() + 2));
    EXPECT_EQ(with_scale(ReduceOp::Max, -2), -2.0 * (here.front() + 2));
    double product = 1;
    for (const int r : here) product *= 2.0 * (r + 2);
    EXPECT_EQ(with_scale(ReduceOp::Product, 2), product);
    EXPECT_EQ(allgather(mine(1), {.name = name}).size(0), static_cast<int64_t>(here.size()));
    barrier();
    (void)grouped_allreduce({mine(2), mine(5)}, {.name = name + " group", .op = ReduceOp::Sum});
  }
  const int last = join();
  EXPECT_GE(last, 0);
  EXPECT_LT(last, size());
  expect_equal(allreduce(at::full({1}, last), {.op = ReduceOp::Max}), at::full({1}, last));
}

TEST(Join, WhatNeedsEveryRankFailsByName) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  if (rank() != 0) {
    EXPECT_THAT(error_of([] { alltoall(at::ones({size()}), {.name = "a2a"}); }),
                AllOf(HasSubstr("tensor \"a2a\""), HasSubstr("rank 0 has joined"),
                      HasSubstr("alltoall needs every rank")));
    EXPECT_THAT(error_of([] { reducescatter(at::ones({size()}), {.name = "rs"}); }),
                HasSubstr("reducescatter needs every rank"));
    EXPECT_THAT(error_of([] { broadcast(at::ones({1}), {.name = "b", .root = 0}); }),
                HasSubstr("its root, rank 0, has joined"));
  }
  (void)join();
  expect_works({});
}

// Calls without a name are counted on each rank, and ranks that have joined miss some.
TEST(Join, CallsWithoutANameMeetAfterIt) {
  const ProcessSet all = add_process_set(ProcessSet().ranks());
  for (const ProcessSet& set : {ProcessSet(), all}) {
    for (int round = 0; round < 2; ++round) {
      const int calls = round == 0 ? rank() : size() - rank();
      for (int call = 0; call < calls; ++call) {
        (void)allreduce(mine(), {.process_set = set});
        (void)allgather(mine(), {.process_set = set});
      }
      (void)join(set);
      expect_works(set);
      EXPECT_EQ(allgather(mine(1), {.process_set = set}).size(0), size());
      const at::Tensor x = at::ones({2}).requires_grad_();
      autograd::allreduce(x, {.op = ReduceOp::Sum, .process_set = set}).sum().backward();
      expect_equal(x.grad(), at::full({2}, size(), at::kFloat));
    }
  }
  remove_process_set(all);
}

TEST(Join, OfAProcessSet) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  const ProcessSet set = add_process_set({0, 2});
  if (rank() == 2) {
    expect_equal(allreduce(mine(), {.name = "x", .op = ReduceOp::Sum, .process_set = set}),
                 at::full({3}, 3, at::kLong));
    EXPECT_EQ(join(set), 2);
  }
  if (rank() == 0) {
    EXPECT_EQ(join(set), 2);
  }
  remove_process_set(set);
}

// -- wrong use ------------------------------------------------------------------------------------

TEST(WrongUse, ANameInFlightIsRefusedHereAndTheFirstCallStillWorks) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  Handle first;
  if (rank() == 0) {
    first = allreduce_async(mine(), {.name = "twice", .op = ReduceOp::Sum});
    EXPECT_THAT(error_of([] { allreduce(mine(), {.name = "twice", .op = ReduceOp::Sum}); }),
                AllOf(HasSubstr("tensor \"twice\" was submitted again"), HasSubstr("wait for it")));
  }
  barrier();
  if (rank() != 0) first = allreduce_async(mine(), {.name = "twice", .op = ReduceOp::Sum});
  expect_equal(first.wait(), at::full({3}, sum_over({}), at::kLong));
}

TEST(WrongUse, ACallOfOneRankAloneIsToldToWhoWaits) {
  if (size() < 2) GTEST_SKIP() << "needs two ranks";
  // A collective inside `if (rank == 0)`: the wait says who is missing.
  Handle lonely;
  if (rank() == 0) {
    lonely = allreduce_async(mine(), {.name = "only on rank 0", .op = ReduceOp::Sum});
    EXPECT_THAT(error_of([&] { (void)lonely.wait(std::chrono::milliseconds(50)); }),
                AllOf(HasSubstr("timeout"), HasSubstr("only on rank 0")));
  }
  barrier();
  if (rank() != 0)
    lonely = allreduce_async(mine(), {.name = "only on rank 0", .op = ReduceOp::Sum});
  expect_equal(lonely.wait(), at::full({3}, sum_over({}), at::kLong));
}

TEST(WrongUse, AForkedChildIsTold) {
  const pid_t child = fork();
  if (child == 0) {
    int told = rank() == last_rank() && size() > rank() && ProcessSet().includes_me() ? 0 : -1;
    for (const auto& call : {+[] { barrier(); }, +[] { init(); },
                             +[] { (void)broadcast(at::ones(2), {.name = "of a child"}); }}) {
      try {
        call();
      } catch (const Error& error) {
        told += std::string(error.what()).find("fork") != std::string::npos ? 1 : 0;
      }
    }
    _exit(told == 3 && !is_initialized() ? 42 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  expect_works({});
}

}  // namespace
}  // namespace horon::process_set_test
