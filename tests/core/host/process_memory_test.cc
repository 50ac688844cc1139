// Copies by the kernel, here within one process, and what it can't copy.
#include "horon/core/host/process_memory.h"

#include <cerrno>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

uint64_t address_of(const std::vector<std::byte>& data) {
  return reinterpret_cast<uint64_t>(data.data());
}

TEST(ProcessMemory, CopiesToAndFro) {
  const std::vector<std::byte> from(100'003, std::byte{7});
  std::vector<std::byte> to(from.size());
  EXPECT_EQ(read_process(getpid(), to.data(), address_of(from), from.size()), 0);
  EXPECT_EQ(to, from);
  std::vector<std::byte> there(from.size());
  EXPECT_EQ(write_process(getpid(), address_of(there), from.data(), from.size()), 0);
  EXPECT_EQ(there, from);
  EXPECT_EQ(read_process(getpid(), to.data(), 64, 0), 0);  // nothing is always there
}

TEST(ProcessMemory, TellsWhatItCantCopy) {
  std::vector<std::byte> here(100);
  EXPECT_EQ(read_process(getpid(), here.data(), 64, here.size()), EFAULT);
  EXPECT_EQ(write_process(getpid(), 64, here.data(), here.size()), EFAULT);
  constexpr int kNobody = 1 << 22;  // more than the largest number of a process
  EXPECT_EQ(read_process(kNobody, here.data(), address_of(here), here.size()), ESRCH);
}

// A copy that begins well and ends in a page that is not there.
TEST(ProcessMemory, CopiesAllOrTellsOfAnError) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const pages =
      mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* const data = static_cast<std::byte*>(pages) + page;
  ASSERT_EQ(munmap(pages, page), 0);
  ASSERT_EQ(munmap(data + page, page), 0);
  std::vector<std::byte> here(2 * page);
  const auto address = reinterpret_cast<uint64_t>(data);
  EXPECT_EQ(read_process(getpid(), here.data(), address, here.size()), EFAULT);
  EXPECT_FALSE(is_reachable(data, 2 * page));
  EXPECT_FALSE(is_reachable(data - page, 2 * page));
  EXPECT_TRUE(is_reachable(data, page));
  EXPECT_EQ(munmap(data, page), 0);
}

// Pages of the kernel or of a device, which the program reads like any other.
TEST(ProcessMemory, PagesOfADeviceAreOutOfReach) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line) && line.find("[vvar]") == std::string::npos) {
  }
  if (line.find("[vvar]") == std::string::npos) GTEST_SKIP() << "this kernel maps no such page";
  const auto* const page = reinterpret_cast<const std::byte*>(std::stoull(line, nullptr, 16));
  EXPECT_FALSE(is_reachable(page, 64));
  const std::vector<std::byte> own(64);
  EXPECT_TRUE(is_reachable(own.data(), own.size()));
  EXPECT_TRUE(is_reachable(page, 0));
}

// More ranges than one call takes; the last one is not there.
TEST(ProcessMemory, AsksForManyRangesAtOnce) {
  const std::vector<std::byte> own(64);
  const auto* const nothing = reinterpret_cast<const std::byte*>(64);
  std::vector<std::span<const std::byte>> ranges;
  EXPECT_TRUE(are_reachable(ranges));
  for (size_t count : {1, 255, 256, 257, 700}) {
    ranges.assign(count, own);
    EXPECT_TRUE(are_reachable(ranges)) << count;
    ranges.back() = {nothing, 64};
    EXPECT_FALSE(are_reachable(ranges)) << count;
    ranges.back() = {nothing, 0};
    EXPECT_TRUE(are_reachable(ranges)) << count;
  }
}

TEST(ProcessProbe, SeesAnotherProcessOfTheSameNumber) {
  const ProcessProbe mine(2);
  const ProcessProbe peer(2);
  EXPECT_EQ(mine.try_copies(getpid(), peer.offer(), 1), "");
  ProcessProbe::Offer other = peer.offer();
  ++other.token;
  EXPECT_NE(mine.try_copies(getpid(), other, 1).find("is a different process here"),
            std::string::npos);
  other.token_address = 64;
  EXPECT_NE(mine.try_copies(getpid(), other, 1).find("process_vm_readv"), std::string::npos);
}

}  // namespace
}  // namespace horon::core
