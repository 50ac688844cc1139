// The messages between ranks of several hosts when the same collectives repeat. Each layout of
// hosts is a test of its own (tests.cmake); one host is among them.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/ops/session/blocking_sum.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/mpi_main.h"
#include "horon/tests/support/statistics_between_collectives.h"

namespace horon {
namespace {

void sum(const std::string& name, uint32_t set = 0, float expected = 0) {
  const auto mine = static_cast<float>(rank() + 1);
  if (set == 0) expected = static_cast<float>(size() * (size() + 1) / 2);
  EXPECT_EQ(std::ranges::count(test::blocking_sum(name, {mine, mine, mine}, set), expected), 3);
}

// Without limits there are no Pings, and nothing thaws, however late a rank is. Blocking sums
// freeze as others do, since their elements do not travel with the votes.
const std::map<std::string, std::string> without_limits = {
    {"HORON_DEAD_AFTER_S", "0"}, {"HORON_STALL_WARN_S", "0"}, {"HORON_EAGER_BYTES", "0"}};

// The number of messages that this rank sends for one frozen start of the world; it receives as
// many.
uint64_t messages_of_a_start() {
  const core::Topology& topology = ops::runtime().topology();
  if (topology.rank == 0) return static_cast<uint64_t>(topology.host_count() - 1);
  return topology.local_rank == 0 && topology.host_of[static_cast<size_t>(topology.rank)] > 0 ? 1
                                                                                              : 0;
}

TEST(SessionOnHosts, AFrozenStartIsOneMessageUpAndOneDownForEachOtherHost) {
  constexpr uint64_t rounds = 100;
  init_session({.set = without_limits});
  const auto round = [] {
    sum("x");
    sum("y");
    barrier();
  };
  for (int i = 0; i < 10; ++i) round();
  const Statistics before = test::statistics_between_collectives();
  for (uint64_t i = 0; i < rounds; ++i) round();
  const Statistics after = test::statistics_between_collectives();
  EXPECT_EQ(after.frozen_starts, before.frozen_starts + 3 * rounds);
  EXPECT_EQ(after.negotiated_starts, before.negotiated_starts);
  EXPECT_EQ(after.void_starts, 0U);
  const uint64_t messages = 3 * rounds * messages_of_a_start();
  EXPECT_EQ(after.control_messages_sent, before.control_messages_sent + messages);
  EXPECT_EQ(after.control_messages_received, before.control_messages_received + messages);
  shutdown();
}

TEST(SessionOnHosts, AThawAndAFreezeLoseNothing) {
  init_session({.set = {{"HORON_EAGER_BYTES", "0"}}});
  for (int times = 0; times < 4; ++times) {
    for (int i = 0; i < 60; ++i) sum("x");
    if (rank() == size() - 1) {
      ops::runtime().refuse("x", "no good");
    } else {
      EXPECT_THROW(sum("x"), Error);
    }
    sum("beside");
  }
  EXPECT_GE(statistics().thaws, 4U);
  EXPECT_GE(statistics().freezes, 4U);
  shutdown();
}

TEST(SessionOnHosts, ASetHasGatesOfItsOwn) {
  if (test_size() < 3) GTEST_SKIP() << "needs a third rank";
  init_session({.set = without_limits});
  const ProcessSet set = add_process_set({1, 2});
  const bool member = rank() == 1 || rank() == 2;
  for (int i = 0; member && i < 30; ++i) sum("x", set.id(), 5);
  EXPECT_EQ(statistics().frozen_starts >= 20, member);
  for (int i = 0; i < 10; ++i) sum("x");
  remove_process_set(set);
  shutdown();
}

// The job itself may have that allreduce.
TEST(SessionOnHosts, ASetThatLacksTheAskedAllreduceIsNamed) {
  InitOptions options;
  options.set = {{"HORON_ALLREDUCE", "hier"}};
  const std::string of_job = test::error_of([&] { init_session(options); });
  if (!is_initialized()) {
    EXPECT_THAT(of_job,
                testing::HasSubstr("HORON_ALLREDUCE=hier: this job, on one host, has no such"));
    return;
  }
  EXPECT_THAT(test::error_of([] { (void)add_process_set({0}); }),
              testing::HasSubstr("add_process_set({0}): HORON_ALLREDUCE=hier: the process set of "
                                 "rank 0, on one host, has no such allreduce"));
  shutdown();
}

}  // namespace
}  // namespace horon
