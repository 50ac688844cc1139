#include "horon/core/host/cpu_share.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sched.h>
#include <string>
#include <unistd.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/support/thread_ranks.h"

namespace horon::core {
namespace {

namespace fs = std::filesystem;

// As a launcher does: ranks may run on all cores, or each on one core of its own.
TEST(CpuShare, CountsTheRanksThatMayRunOnTheSameCores) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const int cores = CPU_COUNT(&all);
  if (cores < 2) GTEST_SKIP() << "needs two cores";
  for (const bool bound : {false, true}) {
    const InProcessJob job(2);
    run_ranks(2, [&](int rank) {
      cpu_set_t own = all;
      if (bound) {
        int core = 0;
        for (int seen = -1; core < CPU_SETSIZE; ++core) {
          if (CPU_ISSET(core, &all) && ++seen == rank) break;
        }
        CPU_ZERO(&own);
        CPU_SET(core, &own);
      }
      ASSERT_EQ(sched_setaffinity(0, sizeof(own), &own), 0);  // of this thread
      const CpuShare share = find_cpu_share(job.of(rank), std::nullopt);
      EXPECT_EQ(share.cores, bound ? 1 : cores);
      EXPECT_EQ(share.sharers, bound ? 1 : 2);
      EXPECT_EQ(share.has_spare_core(), !bound && cores >= 4);
      EXPECT_EQ(share.has_too_few_cores(), !bound && cores < 2);
    });
  }
}

TEST(CpuShare, MoreRanksThanCores) {
  EXPECT_TRUE((CpuShare{.cores = 1, .sharers = 2}).has_too_few_cores());
  EXPECT_FALSE((CpuShare{.cores = 2, .sharers = 2}).has_too_few_cores());
  EXPECT_FALSE((CpuShare{.cores = 0, .sharers = 2}).has_too_few_cores());  // it is not known
}

// Cores 0 and 4 are hardware threads of one, and so are 1 and 5; of core 6 nothing is known.
TEST(CpuShare, CountsPhysicalCores) {
  const fs::path folder =
      fs::temp_directory_path() / ("physical_cores_" + std::to_string(::getpid()));
  for (const auto& [core, list] : {std::pair(0, "0,4"), {1, "1,5"}, {4, "0,4"}, {5, "1,5"}}) {
    const fs::path topology = folder / ("cpu" + std::to_string(core)) / "topology";
    fs::create_directories(topology);
    std::ofstream(topology / "thread_siblings_list") << list << "\n";
  }
  const auto count = [&](std::initializer_list<int> cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) CPU_SET(core, &set);
    return physical_cores(set, folder.string());
  };
  EXPECT_EQ(count({0, 1, 4, 5}), 2);
  EXPECT_EQ(count({0, 4}), 1);
  EXPECT_EQ(count({4, 5}), 2);
  EXPECT_EQ(count({0, 4, 6}), 2);
  fs::remove_all(folder);
}

TEST(CpuShare, WhatMpirunHasBoundIsTold) {
  const CpuShare one{.cores = 1, .sharers = 1, .visible = 1, .physical = 1};
  EXPECT_EQ(binding_remark(one, 16, 2),
            "mpirun has bound this rank to 1 of 16 cores: mpirun --bind-to none, or horonrun, "
            "gives it 8");
  EXPECT_EQ(binding_remark(one, 2, 2), "");
  EXPECT_EQ(binding_remark(one, 16, 16), "");
  EXPECT_EQ(binding_remark(one, 0, 2), "");
  const CpuShare socket{.cores = 8, .sharers = 2, .visible = 8, .physical = 8};
  EXPECT_EQ(binding_remark(socket, 16, 4), "");
  EXPECT_THAT(binding_remark(socket, 64, 4), testing::HasSubstr("8 of 64 cores, shared by 2"));
}

// Containers on a host with many cores: one for each rank, or one for several.
TEST(CpuShare, AQuotaCountsWhereItLeavesLess) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const int cores = CPU_COUNT(&all);
  const InProcessJob job(4);
  run_ranks(4, [&](int rank) {
    const auto of = [&](double quota, int group) {
      return find_cpu_share(job.of(rank),
                            CpuQuota{quota, "/pod", static_cast<uint64_t>(group) + 1});
    };
    const CpuShare each = of(0.2, rank);
    EXPECT_EQ(each.cores, 1);
    EXPECT_EQ(each.sharers, 1);
    EXPECT_TRUE(each.by_quota);
    EXPECT_EQ(each.visible, cores);

    const CpuShare two = of(0.25 * cores, rank / 2);
    EXPECT_EQ(two.sharers, 2);
    EXPECT_EQ(two.cores, std::max(1, cores / 4));
    EXPECT_TRUE(two.by_quota);

    const CpuShare ample = of(cores, 0);
    EXPECT_EQ(ample.cores, cores);
    EXPECT_EQ(ample.sharers, 4);
    EXPECT_FALSE(ample.by_quota);

    const CpuShare unlike = rank == 0 ? of(0.2, 0) : find_cpu_share(job.of(rank), std::nullopt);
    EXPECT_EQ(unlike.by_quota, rank == 0);
  });
}

// Files as the kernel shows them.
class CpuQuotaTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& path, const std::string& content) const {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << content;
  }
  std::optional<CpuQuota> look() const {
    return cpu_quota((folder_ / "proc").string(), (folder_ / "groups").string());
  }

  const fs::path folder_ = fs::temp_directory_path() / ("cpu_quota_" + std::to_string(::getpid()));
};

TEST_F(CpuQuotaTest, IsThatOfTheTightestGroupAbove) {
  EXPECT_FALSE(look());
  write("proc/self/cgroup", "0::/kubepods/pod1/0123\n");
  EXPECT_FALSE(look());
  write("groups/kubepods/cpu.max", "max 100000\n");
  EXPECT_FALSE(look());
  write("groups/kubepods/pod1/cpu.max", "800000 100000\n");
  ASSERT_TRUE(look());
  EXPECT_DOUBLE_EQ(look()->cores, 8);
  EXPECT_EQ(look()->group, "/kubepods/pod1");
  const uint64_t of_pod = look()->group_id;
  EXPECT_NE(of_pod, 0U);
  write("groups/kubepods/pod1/0123/cpu.max", "1200000 100000\n");
  EXPECT_DOUBLE_EQ(look()->cores, 8);
  write("groups/kubepods/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(look()->cores, 1.5);
  EXPECT_NE(look()->group_id, of_pod);
}

TEST_F(CpuQuotaTest, OfAContainerThatSeesItsOwnGroupAlone) {
  write("proc/self/cgroup", "0::/kubepods/pod1/0123\n");
  write("groups/cpu.max", "50000 100000\n");
  ASSERT_TRUE(look());
  EXPECT_DOUBLE_EQ(look()->cores, 0.5);
}

TEST_F(CpuQuotaTest, OfGroupsOfVersion1) {
  write("proc/self/cgroup", "4:cpu,cpuacct:/job_7\n3:cpuset:/a\n0::/\n");
  write("groups/cpu/job_7/cpu.cfs_quota_us", "-1\n");
  write("groups/cpu/job_7/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(look());
  write("groups/cpu/job_7/cpu.cfs_quota_us", "300000\n");
  ASSERT_TRUE(look());
  EXPECT_DOUBLE_EQ(look()->cores, 3);
}

}  // namespace
}  // namespace horon::core
