// Which ranks may use their GPUs together, and what the other ranks are told.
#include "horon/ops/nccl/job_gpu.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/text.h"
#include "horon/tests/support/host_gpu/host_gpu_libraries.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

using core::concat;
using testing::AllOf;
using testing::HasSubstr;

JobGpu::Facts gpu_at(const std::string& bus) {
  JobGpu::Facts facts;
  facts.device = 0;
  facts.bus = bus;
  facts.nccl_version = 22809;
  return facts;
}

TEST(JobGpu, EachRankHasItsOwn) {
  EXPECT_EQ(JobGpu::judge({gpu_at("1"), gpu_at("2")}, {0, 0}), "");
  EXPECT_EQ(JobGpu::judge({gpu_at("1"), gpu_at("1")}, {0, 1}), "");  // on two hosts
}

TEST(JobGpu, TwoRanksOnOneAreTold) {
  const std::string fault = JobGpu::judge({gpu_at("1"), gpu_at("2"), gpu_at("1")}, {0, 0, 0});
  EXPECT_THAT(fault, AllOf(HasSubstr("ranks 0 and 2 share the GPU at 1"),
                           HasSubstr("no more ranks on a host than it has GPUs (slices of one "
                                     "GPU, MIG, count as one), or")));
  // Then NCCL takes them for ranks of two hosts.
  JobGpu::Facts moved = gpu_at("1");
  moved.nccl_host_id = "elsewhere";
  EXPECT_EQ(JobGpu::judge({gpu_at("1"), moved}, {0, 0}), "");
}

TEST(JobGpu, WhyNotNccl) {
  JobGpu::Facts no_nccl = gpu_at("2");
  no_nccl.why_not = "libnccl.so.2 was not found";
  EXPECT_EQ(JobGpu::judge({gpu_at("1"), no_nccl}, {0, 0}),
            "rank 1 can't use NCCL: libnccl.so.2 was not found");
  JobGpu::Facts older = gpu_at("2");
  older.nccl_version = 21903;
  EXPECT_THAT(JobGpu::judge({gpu_at("1"), older}, {0, 0}), HasSubstr("22809, rank 1 has 21903"));
}

// Runs `check` on each of four ranks. `buses` are those of their GPUs; rank 1 has no GPU.
void check_sets(const std::vector<std::string>& buses, const std::string& collectives,
                const std::function<void(JobGpu&)>& check) {
  const core::InProcessJob job(4);
  core::run_ranks(4, [&](int rank) {
    test::HostGpuLibraries::Options options;
    options.devices = rank == 1 ? 0 : 4;
    options.bus = buses.at(static_cast<size_t>(rank));
    const auto gpu =
        JobGpu::find(job.of(rank), std::make_shared<test::HostGpuLibraries>(options), collectives);
    EXPECT_EQ(gpu->owners(), (std::vector<int>{0, 2, 3}));
    check(*gpu);
  });
}

TEST(JobGpu, SetsOfRanksWithGpus) {
  check_sets({"a", "", "b", "c"}, "auto", [](JobGpu& gpu) {
    EXPECT_TRUE(gpu.uses_nccl());
    EXPECT_EQ(gpu.unavailable({0, 2, 3}), "");
    EXPECT_EQ(gpu.unavailable({3}), "");
    EXPECT_EQ(gpu.unavailable({1}), "rank 1 has no GPU (this host plays no GPU)");
    EXPECT_FALSE(gpu.any_device({1}));
    EXPECT_TRUE(gpu.any_device({0, 1}));
    EXPECT_FALSE(gpu.available());
    EXPECT_EQ(gpu.unavailable({0, 1}), gpu.unavailable());
    EXPECT_THAT(gpu.unavailable(), AllOf(HasSubstr("rank 1 has no GPU (this host plays no GPU)"),
                                         HasSubstr("a process set of the ranks with a GPU")));
  });
}

TEST(JobGpu, RanksWithAndWithoutOneAreMixedWhereTheHostIsAskedFor) {
  check_sets({"a", "", "b", "c"}, "host", [](JobGpu& gpu) {
    EXPECT_EQ(gpu.unavailable(), "");
    EXPECT_TRUE(gpu.mixed({0, 1, 2, 3}));
    EXPECT_TRUE(gpu.mixed({1, 2}));
    EXPECT_FALSE(gpu.mixed({0, 2, 3}));
    EXPECT_FALSE(gpu.mixed({1}));
    EXPECT_EQ(gpu.unavailable({1}), "rank 1 has no GPU (this host plays no GPU)");
  });
  for (const char* const collectives : {"auto", "nccl"}) {
    check_sets({"a", "", "b", "c"}, collectives, [](JobGpu& gpu) {
      EXPECT_FALSE(gpu.mixed({0, 1, 2, 3}));
      EXPECT_THAT(gpu.unavailable(),
                  HasSubstr("by way of the host with HORON_GPU_COLLECTIVES=host"));
    });
  }
}

// No set has NCCL on a device that another rank uses too.
TEST(JobGpu, OneSharedGpuLeavesAllSetsToTheHost) {
  check_sets({"a", "", "b", "a"}, "auto", [](JobGpu& gpu) {
    EXPECT_THAT(gpu.nccl_unavailable(), HasSubstr("ranks 0 and 3 share the GPU at a"));
    for (const std::vector<int>& set : {std::vector<int>{0, 3}, {0, 2}, {2}}) {
      EXPECT_EQ(gpu.unavailable(set), "");
    }
  });
  check_sets({"a", "", "b", "a"}, "nccl", [](JobGpu& gpu) {
    EXPECT_THAT(gpu.unavailable({0, 2}), HasSubstr("ranks 0 and 3 share"));
  });
}

TEST(JobGpu, NoRankHasOne) {
  const core::InProcessJob job(2);
  core::run_ranks(2, [&](int rank) {
    test::HostGpuLibraries::Options options;
    options.devices = 0;
    const auto gpu = JobGpu::find(job.of(rank), std::make_shared<test::HostGpuLibraries>(options));
    EXPECT_TRUE(gpu->owners().empty());
    EXPECT_EQ(gpu->unavailable(), "no rank has a GPU: this host plays no GPU");
  });
}

TEST(JobGpu, IsChosenByLocalRankAndNotOpened) {
  const core::InProcessJob job(3);
  core::run_ranks(3, [&](int rank) {
    const core::Bootstrap& bootstrap = job.of(rank);
    test::HostGpuLibraries::Options options;
    options.devices = rank == 2 ? 1 : 4;
    options.bus = rank == 2 ? "its own" : "";
    const auto libraries = std::make_shared<test::HostGpuLibraries>(options);
    const auto gpu = JobGpu::find(bootstrap, libraries);
    EXPECT_EQ(gpu->unavailable(), "");
    EXPECT_EQ(gpu->device(), rank == 2 ? 0 : rank);
    EXPECT_EQ(libraries->opened_device(), nullptr);
    EXPECT_EQ(gpu->cuda()->device(), gpu->device());
    EXPECT_NE(libraries->opened_device(), nullptr);
  });
}

// A helper thread opens the device, and the thread that steps the loop asks for it next.
TEST(JobGpu, WhoStepsTheLoopStaysOutOfCapturesWhoeverHasOpenedTheDevice) {
  const core::InProcessJob job(1);
  const auto gpu = JobGpu::find(
      job.of(0), std::make_shared<test::HostGpuLibraries>(test::HostGpuLibraries::Options()));
  gpu->sits_down();
  std::thread([&] { (void)gpu->cuda(); }).join();
  (void)gpu->cuda();
  EXPECT_EQ(test::HostCuda::capture_mode(), CudaApi::kStaysOutOfCaptures);
  gpu->gets_up();
  EXPECT_EQ(test::HostCuda::capture_mode(), 0);
  (void)gpu->cuda();
  EXPECT_EQ(test::HostCuda::capture_mode(), 0) << "the thread is the program's again";
  gpu->sits_down();
  EXPECT_EQ(test::HostCuda::capture_mode(), CudaApi::kStaysOutOfCaptures);
  gpu->gets_up();
  EXPECT_EQ(test::HostCuda::capture_mode(), 0);
}

// Only then do allreduces have two halves, which have a common order with the other sets.
TEST(JobGpu, ReducesInHalvesBetweenHostsOfSeveralRanks) {
  struct Case {
    std::vector<int> hosts;
    bool shared_memory;
    bool host_drives;
    bool in_halves;
  };
  for (const Case& tested : std::vector<Case>{{{0, 0, 1}, true, true, true},
                                              {{0, 0, 1}, false, false, false},
                                              {{0, 1}, true, true, false},
                                              {{0, 1}, false, true, false},
                                              {{0, 0}, true, false, false}}) {
    const core::InProcessJob job(tested.hosts);
    core::run_ranks(static_cast<int>(tested.hosts.size()), [&](int rank) {
      test::HostGpuLibraries::Options options;
      options.devices = 4;
      const auto gpu = JobGpu::find(job.of(rank), std::make_shared<test::HostGpuLibraries>(options),
                                    "hierarchical", tested.shared_memory);
      EXPECT_EQ(gpu->host_drives_allreduce(), tested.host_drives);
      EXPECT_EQ(gpu->reduces_in_halves(), tested.in_halves);
    });
  }
}

// With NCCL's own variable its calls could block, which Horon's communicators must not.
TEST(JobGpu, BlockingCommunicatorsAreRefused) {
  ::setenv("NCCL_COMM_BLOCKING", "1", 1);
  const NcclStatus blocking = gpu_libraries()->nccl();
  ::unsetenv("NCCL_COMM_BLOCKING");
  EXPECT_THAT(blocking.unavailable,
              AllOf(HasSubstr("NCCL_COMM_BLOCKING=1"), HasSubstr("unset it")));
  EXPECT_THAT(gpu_libraries()->nccl().unavailable, testing::Not(HasSubstr("BLOCKING")));
}

// NCCL reads files, too, where the environment says nothing.
TEST(JobGpu, SettingsOfNcclStandInItsFilesToo) {
  namespace fs = std::filesystem;
  const fs::path file = fs::temp_directory_path() / concat("nccl_", ::getpid(), ".conf");
  std::ofstream(file) << "#NCCL_HOSTID=no\nNCCL_COMM_BLOCKING=1\nNCCL_HOSTID=node7\r\n"
                         "NCCL_COMM_BLOCKING=0\nNCCL_HOSTID=too late";
  ::setenv("NCCL_CONF_FILE", file.c_str(), 1);
  const NcclStatus blocking = gpu_libraries()->nccl();
  EXPECT_EQ(gpu_libraries()->nccl_host_id(), "node7");
  ::setenv("NCCL_COMM_BLOCKING", "0", 1);
  ::setenv("NCCL_HOSTID", "", 1);
  const NcclStatus not_blocking = gpu_libraries()->nccl();
  EXPECT_EQ(gpu_libraries()->nccl_host_id(), "");
  for (const char* const name : {"NCCL_CONF_FILE", "NCCL_COMM_BLOCKING", "NCCL_HOSTID"}) {
    ::unsetenv(name);
  }
  fs::remove(file);
  EXPECT_THAT(blocking.unavailable,
              AllOf(HasSubstr(concat("NCCL_COMM_BLOCKING=1 is set in ", file.string())),
                    HasSubstr("set NCCL_COMM_BLOCKING=0 in the environment")));
  EXPECT_THAT(not_blocking.unavailable, testing::Not(HasSubstr("BLOCKING")));
}

}  // namespace
}  // namespace horon::ops
