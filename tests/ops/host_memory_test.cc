#include "horon/ops/host/host_memory.h"

#include <cstring>

#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/in_process_bootstrap.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/host/scratch_loan.h"

namespace horon::ops {
namespace {

TEST(HostMemory, AllocatesAlignedMemoryWithoutAGroup) {
  HostMemory memory(nullptr);
  EXPECT_EQ(memory.device(), DeviceKind::Host);
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{1} << 20}) {
    const auto block = memory.allocate(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % 64, 0u);
    std::memset(block.get(), 1, bytes);
  }
}

TEST(HostMemory, SaysThatThereIsNoMemory) {
  HostMemory memory(nullptr);
  try {
    memory.allocate(~size_t{0});
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Limit);
  }
}

TEST(HostMemory, UsesMemoryOfTheGroup) {
  const core::InProcessJob job(1);
  const auto group = core::LocalGroup::create(job.of(0), 64);
  ASSERT_TRUE(group->available());
  HostMemory memory(group.get());
  const auto block = memory.allocate(1000);
  EXPECT_TRUE(group->locate(block.get(), 1000).has_value());
}

// A peer or MPI may still write there.
TEST(HostMemory, ALoanThatIsNotGivenBackIsKeptForEver) {
  const core::InProcessJob job(1);
  const auto group = core::LocalGroup::create(job.of(0), 64);
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(group.get()));
  core::ScratchPool pool(std::move(domains));
  const auto take = [&pool](bool gives_back) {
    ScratchLoan loan(&pool);
    std::byte* const memory = loan.take(1000);
    if (gives_back) loan.give_back();
    return memory;
  };
  std::byte* const first = take(true);
  EXPECT_EQ(take(false), first);
  std::byte* const second = take(false);
  EXPECT_NE(second, first);
  EXPECT_TRUE(group->locate(first, 1000).has_value());
  EXPECT_TRUE(group->locate(second, 1000).has_value());
}

TEST(HostMemory, CopiesAtOnce) {
  HostMemory memory(nullptr);
  const char from[] = "horon";
  char to[8] = "";
  const core::CopyItem items[] = {
      {reinterpret_cast<const std::byte*>(from), reinterpret_cast<std::byte*>(to), 3},
      {reinterpret_cast<const std::byte*>(from + 3), reinterpret_cast<std::byte*>(to + 3), 3},
      {nullptr, nullptr, 0}};
  EXPECT_TRUE(memory.queue().immediate());
  EXPECT_EQ(memory.queue().record(), nullptr);
  memory.queue().copy(items);
  EXPECT_STREQ(to, "horon");
}

TEST(HostMemory, FillsWithAPattern) {
  HostMemory memory(nullptr);
  std::vector<int16_t> to(11, 5);  // longer than the pattern, and no multiple of it
  core::CopyItem item;
  item.to = reinterpret_cast<std::byte*>(to.data());
  item.bytes = 10 * sizeof(int16_t);
  item.pattern = 0x0007'0007'0007'0007;
  memory.queue().copy({&item, 1});
  EXPECT_EQ(std::count(to.begin(), to.end(), 7), 10);
  EXPECT_EQ(to.back(), 5);
}

}  // namespace
}  // namespace horon::ops
