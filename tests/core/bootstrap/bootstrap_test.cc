// The contract of bootstraps, with threads as ranks.
#include "horon/core/bootstrap/bootstrap.h"

#include <sched.h>

#include <gtest/gtest.h>

#include "horon/core/bootstrap/cpu_share.h"
#include "horon/tests/core/bootstrap/bootstrap_contract.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::core {
namespace {

void check_job(const InProcessJob& job, int size) {
  run_ranks(size, [&](int rank) {
    EXPECT_EQ(job.of(rank).topology().rank, rank);
    EXPECT_EQ(job.of(rank).topology().size, size);
    check_bootstrap(job.of(rank));
  });
}

TEST(InProcessBootstrap, KeepsTheContractOnOneHost) {
  for (const int size : {1, 2, 5}) check_job(InProcessJob(size), size);
}

TEST(InProcessBootstrap, KeepsTheContractOnSeveralHosts) {
  check_job(InProcessJob(std::vector<int>{7, 3, 7, 3, 3}), 5);
}

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
      const CpuShare share = find_cpu_share(job.of(rank));
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

}  // namespace
}  // namespace horon::core
