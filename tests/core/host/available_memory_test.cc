#include "horon/core/host/available_memory.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMiB = size_t{1} << 20;

// Files as the kernel shows them, with 1000 MiB left on the host.
class AvailableMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    write("proc/meminfo", "MemTotal:  4096000 kB\nMemFree:  10 kB\nMemAvailable:  1024000 kB\n");
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& path, const std::string& content) const {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << content;
  }
  // Adds a control group of version 2; sizes in MiB.
  void add_group(const std::string& path, const std::string& limit, size_t used,
                 size_t files) const {
    write("groups" + path + "/memory.max", limit + "\n");
    write("groups" + path + "/memory.current", std::to_string(used * kMiB) + "\n");
    write("groups" + path + "/memory.stat",
          "anon 7\ninactive_file " + std::to_string(files * kMiB / 2) + "\nactive_file " +
              std::to_string(files * kMiB / 2) + "\nshmem 99\n");
  }
  AvailableMemory look() const {
    return available_memory((folder_ / "proc").string(), (folder_ / "groups").string());
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("available_memory_" + std::to_string(::getpid()));
};

std::string mib(size_t count) { return std::to_string(count * kMiB); }

TEST_F(AvailableMemoryTest, WithoutGroupsIsThatOfTheHost) {
  EXPECT_EQ(look().bytes, 1000 * kMiB);
  EXPECT_EQ(look().where, "on this host");
  write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(look().bytes, 1000 * kMiB);
}

TEST_F(AvailableMemoryTest, IsWhatTheTightestGroupAboveLeaves) {
  write("proc/self/cgroup", "0::/slurm/job_7/task_0\n");
  add_group("/slurm", mib(900), 100, 0);
  add_group("/slurm/job_7", mib(400), 150, 50);
  add_group("/slurm/job_7/task_0", "max", 120, 50);
  EXPECT_EQ(look().bytes, 300 * kMiB);
  EXPECT_EQ(look().where, "of the limit of its control group /slurm/job_7 (cgroup)");
  add_group("/slurm/job_7", mib(400), 500, 0);
  EXPECT_EQ(look().bytes, 0);
}

// The kernel counts the two at different moments.
TEST_F(AvailableMemoryTest, OfAGroupWithMoreFilesThanItUses) {
  write("proc/self/cgroup", "0::/job_7\n");
  add_group("/job_7", mib(400), 50, 60);
  EXPECT_EQ(look().bytes, 400 * kMiB);
}

TEST_F(AvailableMemoryTest, OfAContainerThatSeesItsOwnGroupAlone) {
  write("proc/self/cgroup", "0::/kubepods/pod1/0123\n");
  add_group("/", mib(200), 50, 0);
  EXPECT_EQ(look().bytes, 150 * kMiB);
}

TEST_F(AvailableMemoryTest, OfGroupsOfVersion1) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/job_7\n3:cpuset,xmemory:/a\n0::/\n");
  write("groups/memory/job_7/memory.limit_in_bytes", mib(300));
  write("groups/memory/job_7/memory.usage_in_bytes", mib(250));
  write("groups/memory/job_7/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + mib(40) + "\ntotal_active_file " + mib(10));
  EXPECT_EQ(look().bytes, 100 * kMiB);
  write("groups/memory/job_7/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(look().bytes, 1000 * kMiB);
}

// The memory that is available to this process, whatever its groups are.
TEST(AvailableMemory, OfThisProcessIsSome) { EXPECT_GT(available_memory().bytes, 0); }

}  // namespace
}  // namespace horon::core
