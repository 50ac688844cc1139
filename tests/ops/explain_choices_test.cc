// The printed choices are those that the ops make, with the knobs of the job.
#include "horon/ops/explain_choices.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/host/local_group.h"
#include "horon/ops/mpi/mpi_communicator.h"

namespace horon::ops {
namespace {

// The choices for an allreduce among three hosts with one rank each.
std::string allreduce_between_hosts(const core::Config& config,
                                    const MachineConstants& constants = {}) {
  Communicator::Parts parts;
  parts.topology = core::make_topology(0, std::vector{0, 1, 2});
  parts.members.resize(3);
  std::iota(parts.members.begin(), parts.members.end(), 0);
  parts.local_group = core::LocalGroup::create_unavailable(0, 1, "a test");
  parts.all_reach_their_hosts = true;
  parts.constants = constants;
  return explain_choices(Communicator(std::move(parts)), config).front();
}

TEST(ExplainChoices, RoundsAreChosenByTheBytesThatTravel) {
  core::Config config;
  MachineConstants far;
  far.message_us = 500;
  EXPECT_EQ(allreduce_between_hosts(config), "allreduce: one round to 16 KiB, then two rounds");
  EXPECT_EQ(allreduce_between_hosts(config, far),
            "allreduce: one round to 512 KiB, then two rounds");
  // What is rounded for the wire has half the bytes, and the default constants.
  config.wire_dtype = "bfloat16";
  EXPECT_EQ(allreduce_between_hosts(config, far),
            "allreduce: one round to 32 KiB, then two rounds");
}

TEST(ExplainChoices, TheAllreduceThatAKnobAsksForIsNamed) {
  core::Config config;
  config.allreduce = "mpi";
  EXPECT_EQ(allreduce_between_hosts(config), "allreduce: MPI");
  config.allreduce = "hier";
  EXPECT_EQ(allreduce_between_hosts(config), "allreduce: one round to 16 KiB, then two rounds");
}

}  // namespace
}  // namespace horon::ops
