// All ranks get the same constants, whatever is in the files and however long the measurement
// takes.
#include "horon/ops/timing/job_constants.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/host/local_group.h"
#include "horon/ops/choice/constants_file.h"
#include "horon/ops/timing/host_timing.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/thread_messages.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

namespace fs = std::filesystem;

class JobConstantsTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  // What each rank gets. Rank r is on host hosts[r], and its ranks share memory, or not.
  std::vector<JobConstants> find(const std::vector<int>& hosts, const core::Config& config,
                                 bool share_memory = true) {
    std::vector<JobConstants> found(hosts.size());
    core::InProcessJob job(hosts);
    MessageHub hub;
    core::run_ranks(static_cast<int>(hosts.size()), [&](int rank) {
      const core::Bootstrap& bootstrap = job.of(rank);
      const auto group = core::LocalGroup::create(bootstrap, HostTiming::area_bytes());
      MeasuredJob measured;
      measured.host_name = "host" + std::to_string(hosts[static_cast<size_t>(rank)]);
      if (share_memory) measured.area = group->area();
      measured.host_limit = kLongEnough;  // a busy machine must not end it
      measured.wire_limits.answer = kLongEnough;
      measured.messages = [&hub, rank] { return std::make_shared<ThreadMessages>(hub, rank); };
      found[static_cast<size_t>(rank)] = find_job_constants(bootstrap, config, measured);
      (void)core::allgather_values(bootstrap, core::Bootstrap::Among::Job, rank);
    });
    EXPECT_TRUE(hub.empty());
    for (const JobConstants& one : found) EXPECT_EQ(one.constants, found.front().constants);
    return found;
  }
  core::Config config(const std::string& measure) {
    core::Config config;
    config.measure = measure;
    config.measure_file = path_;
    return config;
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("job_constants_" + std::to_string(::getpid()));
  const std::string path_ = folder_ / "constants";
};

class JobConstantsOfHosts : public JobConstantsTest,
                            public testing::WithParamInterface<std::vector<int>> {};

TEST_P(JobConstantsOfHosts, AreMeasuredOnceAndThenRead) {
  const std::vector<JobConstants> first = find(GetParam(), config("auto"));
  EXPECT_TRUE(first.front().origin.starts_with("measured in ")) << first.front().origin;
  EXPECT_TRUE(first.front().origin.ends_with("kept in " + path_)) << first.front().origin;
  const std::vector<JobConstants> second = find(GetParam(), config("auto"));
  EXPECT_EQ(second.front().constants, first.front().constants);
  for (const JobConstants& one : second) EXPECT_EQ(one.origin, "read from " + path_);
  const std::vector<JobConstants> again = find(GetParam(), config("again"));
  EXPECT_TRUE(again.front().origin.starts_with("measured in ")) << again.front().origin;
  for (const JobConstants& one : find(GetParam(), config("off"))) {
    EXPECT_EQ(one.constants, MachineConstants());
    EXPECT_EQ(one.origin, "defaults: HORON_MEASURE=off");
  }
}

// The wire is measured between hosts only, and hand-offs where a host has two ranks.
TEST_P(JobConstantsOfHosts, WhatNobodyCanMeasureKeepsItsDefault) {
  const std::vector<int>& hosts = GetParam();
  const MachineConstants constants = find(hosts, config("again")).front().constants;
  const bool one_host = hosts.front() == hosts.back();
  EXPECT_EQ(constants.message_us == MachineConstants().message_us, one_host);
  EXPECT_EQ(constants.wire_bytes_per_us == MachineConstants().wire_bytes_per_us, one_host);
  if (hosts == std::vector{0, 1} || hosts == std::vector{0, 1, 2}) {
    EXPECT_EQ(constants.handoff_us, MachineConstants().handoff_us);
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, JobConstantsOfHosts,
                         testing::Values(std::vector{0, 0}, std::vector{0, 0, 0}, std::vector{0, 1},
                                         std::vector{0, 0, 1}, std::vector{0, 1, 0, 1},
                                         std::vector{0, 1, 2}));

// Defaults that a job has kept as if it had measured them would be those of the next jobs.
TEST_F(JobConstantsTest, WhatNobodyHasMeasuredIsNotKept) {
  const auto without = find({0, 0}, config("auto"), false);
  for (const JobConstants& one : without) {
    EXPECT_TRUE(one.origin.ends_with(", but not hand-offs on 1 host: not kept")) << one.origin;
  }
  EXPECT_FALSE(fs::exists(path_));
  const auto next = find({0, 0}, config("auto"));
  EXPECT_TRUE(next.front().origin.starts_with("measured in ")) << next.front().origin;
  EXPECT_TRUE(find({0, 0}, config("auto")).front().origin.starts_with("read from "));
  const auto one_of_two = find({0, 0, 1}, config("auto"), false);
  EXPECT_TRUE(one_of_two.front().origin.ends_with("not kept")) << one_of_two.front().origin;
  // Hand-offs are not missing where each host has one rank.
  const auto none_missing = find({0, 1}, config("auto"), false);
  EXPECT_TRUE(none_missing.front().origin.ends_with("kept in " + path_));
}

TEST_F(JobConstantsTest, OfOtherHostsAreMeasuredAnew) {
  (void)find({0, 0}, config("auto"));
  const auto other = find({0, 1}, config("auto"));
  EXPECT_TRUE(other.front().origin.starts_with("measured in ")) << other.front().origin;
  EXPECT_TRUE(find({0, 0}, config("auto")).front().origin.starts_with("read from "));
}

// Only rank 0's file counts: ranks that read other ones would choose other algorithms.
TEST_F(JobConstantsTest, AFileThatCanNotBeReadOrWrittenDoesNoHarm) {
  core::Config unwritable = config("auto");
  unwritable.measure_file = folder_ / "no" / "\n" / "file";
  std::ofstream(folder_ / "no") << "a file where a folder should be";
  const auto found = find({0, 0, 1}, unwritable);
  EXPECT_TRUE(found.front().origin.ends_with(" ms")) << found.front().origin;
  std::ofstream(path_) << "nonsense";
  EXPECT_TRUE(find({0, 0, 1}, config("auto")).front().origin.starts_with("measured in "));
}

TEST_F(JobConstantsTest, OneRankMeasuresNothing) {
  EXPECT_EQ(find({0}, config("again")).front().origin, "defaults: there is one rank");
  EXPECT_FALSE(fs::exists(path_));
}

// A peer stands still: the ranks of all hosts throw the same error, once they have all come. A rank
// that knows of it says so before that.
TEST_F(JobConstantsTest, AHostThatDoesNotAnswerIsAnErrorOnAllRanks) {
  core::InProcessJob job(std::vector<int>{0, 1, 0});
  MessageHub hub;
  MessageHub nowhere;
  testing::internal::CaptureStderr();
  core::run_ranks(3, [&](int rank) {
    MeasuredJob measured;
    measured.messages = [&, rank] {
      return std::make_shared<ThreadMessages>(rank == 1 ? nowhere : hub, rank);
    };
    measured.wire_limits.answer = std::chrono::milliseconds(2);
    const std::string error =
        test::error_of([&] { (void)find_job_constants(job.of(rank), config("again"), measured); });
    EXPECT_NE(error.find("has not answered"), std::string::npos) << rank << ": " << error;
  });
  const std::string log = testing::internal::GetCapturedStderr();
  for (const char* peer : {"rank 1 has not answered", "rank 0 has not answered"}) {
    EXPECT_NE(log.find(peer), std::string::npos) << log;
  }
}

}  // namespace
}  // namespace horon::ops
