// The contract of bootstraps, with threads as ranks.
#include "horon/core/bootstrap/bootstrap.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace horon::core
