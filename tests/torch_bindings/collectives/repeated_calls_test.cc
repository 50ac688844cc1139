// Calls that come again under the same names: what they allocate and lock, and that none is taken
// for an earlier one that was different.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "horon/ops/session/call_counts.h"
#include "horon/tests/support/allocation_counter.h"
#include "horon/tests/support/lock_counter.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/collectives/sparse_allreduce.h"

namespace horon::repeated_calls_test {
namespace {

// The least of many calls: the thread that waits may run the loop, or find it done.
int64_t least_of(int64_t (*count)(), const std::function<void()>& call) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 60; ++i) {
    const int64_t before = count();
    call();
    least = std::min(least, count() - before);
  }
  return least;
}

int64_t allocations_of(const std::function<void()>& call) {
  return least_of(testing_support::allocations_of_this_thread, call);
}

TEST(RepeatedCalls, OfOneTensorAllocateLittle) {
  const at::Tensor x = at::zeros({2, 3});
  const int64_t blocking = allocations_of([&] { allreduce_(x, {.name = "a tensor of a model"}); });
  const int64_t waited =
      allocations_of([&] { allreduce_async_(x, {.name = "another tensor"}).wait(); });
  RecordProperty("allocations", std::to_string(blocking) + ", " + std::to_string(waited));
  EXPECT_LE(blocking, 16);
  EXPECT_LE(waited, 16);
}

// The locks of the names of earlier calls, of the queue of submissions on both of its ends, and of
// the loop's seat.
TEST(RepeatedCalls, OfOneTensorLockLittle) {
  const at::Tensor x = at::zeros({2, 3});
  const int64_t blocking = least_of(testing_support::locks_of_this_thread,
                                    [&] { allreduce_(x, {.name = "a tensor that locks"}); });
  RecordProperty("locks", std::to_string(blocking));
  EXPECT_LE(blocking, 7);
}

TEST(RepeatedCalls, OfAGroupAllocateNothingForEachTensor) {
  const auto of_group = [](int64_t tensors) {
    const Tensors group(static_cast<size_t>(tensors), at::zeros({4}));
    const std::string name = "a group of " + std::to_string(tensors);
    return allocations_of([&] { grouped_allreduce_(group, {.name = name}); });
  };
  const int64_t few = of_group(8);
  const int64_t many = of_group(264);
  RecordProperty("allocations", std::to_string(few) + ", " + std::to_string(many));
  EXPECT_LE(many, few + 32) << "lists that grow by doubling are all that may be added";
}

int64_t sum_of_ranks() { return size() * (size() + 1) / 2; }

at::Tensor mine(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return at::full(shape, rank() + 1, at::TensorOptions(type));
}

TEST(RepeatedCalls, OfOneNameMayDiffer) {
  const AllreduceOptions sum{.name = "again", .op = ReduceOp::Sum};
  const AllreduceOptions max{.name = "again", .op = ReduceOp::Max};
  const AllreduceOptions doubled{.name = "again", .op = ReduceOp::Sum, .postscale = 2};
  const auto expect = [](const at::Tensor& got, const at::Tensor& like, int64_t value) {
    EXPECT_EQ(got.sizes(), like.sizes());
    EXPECT_EQ(got.scalar_type(), like.scalar_type());
    EXPECT_TRUE(got.eq(value).all().item<bool>()) << got;
  };
  for (int i = 0; i < 5; ++i) {
    for (const at::ScalarType type : {at::kFloat, at::kLong, at::kComplexFloat}) {
      for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
               {}, {0}, {6}, {6}, {2, 3}, {3, 2}, {1, 2, 3, 4, 1, 1, 2}}) {
        const at::Tensor x = mine(shape, type);
        expect(allreduce(x, sum), x, sum_of_ranks());
        for (const at::Tensor& one : grouped_allreduce({x}, sum)) expect(one, x, sum_of_ranks());
        for (const at::Tensor& one : grouped_allreduce({x, x.clone()}, sum)) {
          expect(one, x, sum_of_ranks());
        }
      }
    }
    const at::Tensor x = mine({6});
    expect(allreduce(x, max), x, size());
    expect(allreduce(x, doubled), x, 2 * sum_of_ranks());
    expect(broadcast(x, {.name = "again", .root = size() - 1}), x, size());
    EXPECT_EQ(allgather(x, {.name = "again"}).size(0), 6 * size());
    EXPECT_EQ(reducescatter(mine({2 * size()}), {.name = "again"}).size(0), 2);
  }
}

// The runtime reads the memory that the tensor had when the call was made.
TEST(RepeatedCalls, TheMemoryStaysWhateverBecomesOfTheTensor) {
  for (int i = 0; i < 10; ++i) {
    at::Tensor dropped = mine({5000});
    at::Tensor changed = mine({5000});
    at::Tensor given = mine({5000}).requires_grad_(true).mul(1);
    const Handle first = allreduce_async(dropped, {.name = "dropped", .op = ReduceOp::Sum});
    const Handle second = allreduce_async(changed, {.name = "changed", .op = ReduceOp::Sum});
    const Handle third = allreduce_async(given, {.name = "given", .op = ReduceOp::Sum});
    const Handle rows = allgather_async(given, {.name = "rows"});
    dropped.reset();
    changed.set_data(at::zeros({5000}));
    given.reset();
    const at::Tensor other = at::zeros({5000});  // may get memory that was given back too early
    for (const Handle& handle : {first, second, third}) {
      EXPECT_TRUE(handle.wait().eq(sum_of_ranks()).all().item<bool>());
      EXPECT_FALSE(handle.wait().requires_grad());
    }
    EXPECT_EQ(rows.wait().sum().item<double>(), 5000.0 * static_cast<double>(sum_of_ranks()));
  }
}

// Their names repeat. Ranks must not be at different calls of one name, though one rank is late.
TEST(RepeatedCalls, WithoutNamesMayBeMoreThanThereAreNumbers) {
  constexpr int64_t kCalls = 2500;
  if (rank() == size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::vector<Handle> handles;
  for (int64_t i = 0; i < kCalls; ++i) {
    handles.push_back(allreduce_async(at::full({2}, i, at::kLong), {.op = ReduceOp::Sum}));
  }
  for (int64_t i = 0; i < kCalls; ++i) {
    const at::Tensor sum = handles[static_cast<size_t>(i)].wait();
    ASSERT_TRUE(sum.eq(i * size()).all().item<bool>()) << i << ": " << sum;
  }
}

// The last call comes after as many as there are numbers, while those are under way.
TEST(RepeatedCalls, WithoutNamesMayBlockOrBeRefusedBehindOthers) {
  const at::Tensor one = at::ones({2}, at::kLong);
  const auto call_all = [&](auto last) {
    barrier();
    if (rank() == size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::vector<Handle> handles;
    for (uint64_t i = 0; i < ops::CallCounts::kNumbers; ++i) {
      handles.push_back(allreduce_async(one, {.op = ReduceOp::Sum}));
    }
    last();
    for (const Handle& handle : handles) EXPECT_EQ(handle.wait()[0].item<int64_t>(), size());
  };
  call_all([&] { EXPECT_EQ(allreduce(one, {.op = ReduceOp::Sum})[0].item<int64_t>(), size()); });
  call_all([&] {
    const at::Tensor wrong = rank() == 0 ? one.to_sparse() : one;
    EXPECT_NE(test::error_of([&] { (void)allreduce(wrong, {.op = ReduceOp::Sum}); }), "no error");
  });
}

// A name that comes again soon is negotiated once; a thousand names are all that can be kept so.
TEST(RepeatedCalls, ThatBlockNeedFewNames) {
  const auto name_of_refused = [] {
    return test::error_of([] {
      (void)scatter_object(std::vector<int>(static_cast<size_t>(size()) + 1), {.root = 0});
    });
  };
  const std::string first = name_of_refused();
  EXPECT_NE(first.find("scatter_object.noname."), std::string::npos) << first;
  for (uint64_t i = 1; i < ops::CallCounts::kNumbersOfBlocking; ++i) {
    EXPECT_EQ(scatter_object(std::vector<int>(static_cast<size_t>(size()), 7), {.root = 0}), 7);
  }
  EXPECT_EQ(name_of_refused(), first);
}

TEST(RepeatedCalls, ThatBlockMayComeOnMoreThreadsThanThereAreNames) {
  constexpr int kThreads = 3 * static_cast<int>(ops::CallCounts::kNumbersOfBlocking) / 2;
  std::vector<std::thread> threads;
  std::vector<std::string> errors(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&error = errors[static_cast<size_t>(i)]] {
      error = test::error_of([] {
        for (int call = 0; call < 8; ++call) {
          EXPECT_EQ(allgather_object(int64_t{rank()}).size(), static_cast<size_t>(size()));
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "no error");
}

TEST(RepeatedCalls, SparseOnesWithoutNamesMayBeMoreThanThereAreNumbers) {
  if (rank() == size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::vector<SparseHandle> handles;
  const at::Tensor one = at::ones({2}).to_sparse();
  for (uint64_t i = 0; i < ops::CallCounts::kNumbers + 6; ++i) {
    handles.push_back(sparse_allreduce_async(one, {.op = ReduceOp::Sum}));
  }
  for (const SparseHandle& handle : handles) {
    ASSERT_EQ(handle.wait().to_dense()[1].item<float>(), static_cast<float>(size()));
  }
}

}  // namespace
}  // namespace horon::repeated_calls_test
