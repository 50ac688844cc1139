// Shared memory while the program has no other memory.
#include <cstddef>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/host/shared_heap.h"
#include "horon/tests/support/failing_allocation.h"

namespace horon::core {
namespace {

// Destructors give blocks back, and they can't report that memory is short.
TEST(ExhaustedHeap, TakesBlocksBack) {
  const auto heap = std::make_shared<SharedHeap>();
  std::vector<std::shared_ptr<std::byte>> held;
  for (int i = 0; i < 3; ++i) held.push_back(heap->allocate(size_t{1} << 20, true));
  for (int i = 0; i < 200; ++i) held.push_back(heap->allocate(1000, true));
  EXPECT_GT(heap->segment_count(), 5U) << "there are several for each size";
  test::fail_allocations(0, 1);
  held.clear();
  EXPECT_FALSE(test::an_allocation_has_failed());
  test::fail_allocations(0, 0);
}

}  // namespace
}  // namespace horon::core
