// The cost of an entry that has been agreed before: no memory that grows with anything, and few
// allocations of a fixed size.
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/core/runtime/runtime_world.h"
#include "horon/tests/support/allocation_counter.h"

namespace horon::core {
namespace {

using namespace test_world;

// Allocations per call of run(), in a job of one rank: nothing is sent, and this thread does all
// the work.
double allocations_of_a_call(size_t parts) {
  double per_call = 0;
  World world(1);
  world.each([&](Runtime& runtime, int) {
    Tensor bucket = tensor(std::vector<float>(parts));
    bucket.spec->parts.clear();
    for (size_t i = 0; i < parts; ++i) {
      bucket.spec->parts.push_back({"a parameter with a long name " + std::to_string(i), {1}});
    }
    constexpr int calls = 200;
    int64_t before = 0;
    for (int i = -50; i < calls; ++i) {
      if (i == 0) before = testing_support::allocations_of_this_thread();
      (void)runtime.run(submission("bucket", bucket))->get();
    }
    const int64_t after = testing_support::allocations_of_this_thread();
    per_call = static_cast<double>(after - before) / calls;
  });
  return per_call;
}

TEST(Allocations, OfAnEntryThatComesAgainDoNotGrowWithIt) {
  const double small = allocations_of_a_call(1);
  const double large = allocations_of_a_call(500);
  RecordProperty("allocations_of_a_call", std::to_string(small));
  EXPECT_LE(small, 28) << "most of them are messages to oneself, the coordinator";
  EXPECT_LE(large, small + 1);
}

// Allocations per call of run() on each of two ranks, once its name is frozen: the ranks drive
// their loops themselves.
double allocations_of_a_frozen_call(CollectiveKind kind) {
  World world(2, {}, test_world::no_limits());
  std::atomic<int64_t> allocations{0};
  constexpr int calls = 200;
  world.each([&](Runtime& runtime, int) {
    Tensor tensor = test_world::tensor({1, 2}, kind);
    std::vector<float> gathered(4);
    auto* const output = reinterpret_cast<std::byte*>(gathered.data());
    int64_t before = 0;
    for (int i = -50; i < calls; ++i) {
      if (i == 0) before = testing_support::allocations_of_this_thread();
      Submission call = submission("a tensor with a long name", tensor);
      if (moves_blocks(kind)) {
        call.memory.front().output = nullptr;
        call.allocate_output = [output](size_t, int64_t, MemoryQueue&) { return output; };
      }
      (void)runtime.run(std::move(call))->get();
    }
    allocations += testing_support::allocations_of_this_thread() - before;
    EXPECT_EQ(runtime.statistics().freezes, 1U);
  });
  return static_cast<double>(allocations) / (2 * calls);
}

TEST(Allocations, OfAFrozenCallAreFew) {
  const double of_a_call = allocations_of_a_frozen_call(CollectiveKind::Allreduce);
  RecordProperty("allocations_of_a_call", std::to_string(of_a_call));
  // By the test: the name, its copy, the list of memory. By its op: three. By Horon: the handle.
  EXPECT_LE(of_a_call, 7.1);
}

TEST(Allocations, OfAFrozenCallThatMovesRowsAreFew) {
  const double of_a_call = allocations_of_a_frozen_call(CollectiveKind::Allgather);
  RecordProperty("allocations_of_a_call", std::to_string(of_a_call));
  // As above, but the op's list grows: one more. By Horon also the rows that this rank says, those
  // in the plan, and those in the handle, but neither the layout nor the choice of the op.
  EXPECT_LE(of_a_call, 11.1);
}

}  // namespace
}  // namespace horon::core
