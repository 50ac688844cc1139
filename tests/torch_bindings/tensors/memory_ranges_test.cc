// Large tensors are worked on by the threads of LibTorch.
#include "horon/torch_bindings/tensors/memory_ranges.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace horon::memory_ranges_test {
namespace {

struct Seen {
  std::set<std::thread::id> threads;
  std::vector<std::pair<int64_t, int64_t>> ranges;
};

Seen look_at_ranges(const at::Tensor& tensor, int64_t grain) {
  Seen seen;
  std::mutex mutex;
  torch_detail::for_each_range(tensor, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    seen.threads.insert(std::this_thread::get_id());
    seen.ranges.emplace_back(begin, end);
  });
  std::sort(seen.ranges.begin(), seen.ranges.end());
  return seen;
}

class MemoryRanges : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(2); }
  void TearDown() override { at::set_num_threads(threads_before_); }

 private:
  const int threads_before_ = at::get_num_threads();
};

void expect_to_cover(const Seen& seen, int64_t count) {
  int64_t next = 0;
  for (const auto& [begin, end] : seen.ranges) {
    EXPECT_EQ(begin, next);
    next = end;
  }
  EXPECT_EQ(next, count);
}

TEST_F(MemoryRanges, OfALargeTensorAreSharedByTwoThreads) {
  for (const at::Tensor& tensor :
       {at::empty({100'001}, at::kFloat), at::empty({250, 400}, at::kDouble).t(),
        at::empty({3, 4, 90, 100}, at::kHalf, at::MemoryFormat::ChannelsLast)}) {
    const Seen seen = look_at_ranges(tensor, 1000);
    EXPECT_EQ(seen.threads.size(), 2);
    expect_to_cover(seen, tensor.numel());
  }
}

TEST_F(MemoryRanges, OfASmallTensorStayOnThisThread) {
  for (const int64_t count : {0, 1, 999}) {
    Seen seen = look_at_ranges(at::empty({count}), 1000);
    expect_to_cover(seen, count);
    EXPECT_LE(seen.ranges.size(), 1) << count;
    seen.threads.erase(std::this_thread::get_id());
    EXPECT_TRUE(seen.threads.empty()) << count;
  }
}

TEST_F(MemoryRanges, OfOneThreadAreOne) {
  at::set_num_threads(1);
  const Seen seen = look_at_ranges(at::empty({100'001}), 1000);
  EXPECT_EQ(seen.ranges.size(), 1);
  EXPECT_EQ(seen.threads, std::set{std::this_thread::get_id()});
}

}  // namespace
}  // namespace horon::memory_ranges_test
