#include "horon/core/bootstrap/launch.h"

#include <cstdlib>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace horon::core {
namespace {

using testing::HasSubstr;

class Launch : public testing::Test {
 protected:
  // Sets these variables, and removes those of all launchers.
  static void environment(const std::map<std::string, std::string>& variables) {
    for (const char* name :
         {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "PMIX_RANK",
          "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"}) {
      ASSERT_EQ(unsetenv(name), 0);
    }
    for (const auto& [name, value] : variables) {
      ASSERT_EQ(setenv(name.c_str(), value.c_str(), 1), 0);
    }
  }
  void TearDown() override { environment({}); }
};

const std::map<std::string, std::string> kStep = {
    {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}};

std::map<std::string, std::string> with(std::map<std::string, std::string> variables,
                                        const std::map<std::string, std::string>& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST_F(Launch, TasksThatMpiDoesNotKnow) {
  for (const std::string name : {"SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    environment(with(kStep, {{name, "4"}}));
    EXPECT_THAT(launch_fault(1), HasSubstr("has started 4 processes (" + name + ")"));
    EXPECT_EQ(launch_remark(1), "");
    EXPECT_EQ(launch_fault(4), "");
  }
}

TEST_F(Launch, OneTaskIsRight) {
  environment(with(kStep, {{"SLURM_STEP_NUM_TASKS", "1"}}));
  EXPECT_EQ(launch_fault(1), "");
  EXPECT_THAT(std::string(launch_remark(1)), HasSubstr("it started one process only"));
}

TEST_F(Launch, MpirunOfOneRankInAStepOfSeveralTasks) {
  environment(with(kStep, {{"SLURM_STEP_NUM_TASKS", "4"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
  EXPECT_EQ(launch_fault(1), "");
}

TEST_F(Launch, ABatchScriptThatStartsNoRanks) {
  environment({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  EXPECT_THAT(launch_fault(1), HasSubstr("has 4 tasks (SLURM_NTASKS)"));
  EXPECT_EQ(launch_fault(4), "");
  environment({{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(launch_fault(1), "");
  environment({{"SLURM_NTASKS", "4"}});  // at the prompt of salloc
  EXPECT_EQ(launch_fault(1), "");
}

TEST_F(Launch, NoLauncherAtAll) {
  environment({});
  EXPECT_EQ(launch_fault(1), "");
  EXPECT_THAT(std::string(launch_remark(1)), HasSubstr("No launcher"));
  EXPECT_EQ(launch_remark(2), "");
}

TEST_F(Launch, OpenMpiNeedsPmix) {
  const std::string open_mpi = "Open MPI v4.1.4, package: Debian";
  environment(kStep);
  EXPECT_THAT(missing_pmix(open_mpi), HasSubstr("srun --mpi=pmix"));
  EXPECT_EQ(missing_pmix("MPICH Version:\t4.0.2"), "");
  environment(with(kStep, {{"SLURM_PROCID", "1"}}));  // the first task says it
  EXPECT_EQ(missing_pmix(open_mpi), "");
  for (const std::string name : {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"}) {
    environment(with(kStep, {{name, "0"}}));
    EXPECT_EQ(missing_pmix(open_mpi), "");
  }
  environment({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});  // no step
  EXPECT_EQ(missing_pmix(open_mpi), "");
}

}  // namespace
}  // namespace horon::core
