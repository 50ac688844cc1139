// Ranks of a host that may not open each other's memory, or that have no room for files.
#include <cstdio>
#include <signal.h>
#include <span>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/host/local_group.h"
#include "horon/core/host/named_file.h"
#include "horon/tests/support/all_are.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/own_user_namespace.h"
#include "horon/tests/support/process_ranks.h"

namespace horon::core {
namespace {

constexpr size_t kBytes = 10'000;

#define REQUIRE_IN_CHILD(condition)                                    \
  if (!(condition)) {                                                  \
    std::fprintf(stderr, "rank %d: not true: %s\n", rank, #condition); \
    return false;                                                      \
  }

// One of three ranks may not look into the others, nor they into it: all of them use files.
TEST(RefusedMemory, ReachesByNameWhomItMayNotLookInto) {
  if (const auto why = why_no_named_files(); !why.empty()) GTEST_SKIP() << why;
  ProcessJob job(3);
  const auto body = [&](int rank) {
    // The user root may look into any process, unless CAP_SYS_PTRACE was taken from it.
    if (geteuid() == 0) REQUIRE_IN_CHILD(setuid(65534) == 0);
    REQUIRE_IN_CHILD(prctl(PR_SET_DUMPABLE, rank == 2 ? 0 : 1) == 0);
    const auto group = LocalGroup::create(job.of(rank), kBytes);
    REQUIRE_IN_CHILD(group->available());
    REQUIRE_IN_CHILD(group->reach() == Reach::ByName);
    return true;
  };
  EXPECT_EQ(run_processes(3, body), std::vector<int>(3, 0));
}

// One of three ranks belongs to another user: no rank gets shared memory, and all can say why.
TEST(RefusedMemory, IsUnavailableToAllIfItIsToOne) {
  if (geteuid() != 0) GTEST_SKIP() << "only the user root can become another one";
  ProcessJob job(3);
  const auto body = [&](int rank) {
    if (rank == 2) REQUIRE_IN_CHILD(setuid(65534) == 0);
    const auto group = LocalGroup::create(job.of(rank), kBytes);
    REQUIRE_IN_CHILD(!group->available());
    const std::string reason = group->unavailable_reason();
    REQUIRE_IN_CHILD(reason.find("/proc/") < reason.find("Permission denied"));
    REQUIRE_IN_CHILD(reason.find("/dev/shm/horon-") < reason.rfind("Permission denied"));
    REQUIRE_IN_CHILD(group->area() == nullptr);
    REQUIRE_IN_CHILD(group->dead_local_ranks().empty());
    group->ring_all_others();
    group->doorbell(rank).ring();
    REQUIRE_IN_CHILD(group->doorbell(rank).wait(kLongEnough, {}));
    auto memory = group->allocate(1000);
    REQUIRE_IN_CHILD(all_are(std::span<const std::byte>(memory.get(), 1000), std::byte{0}));
    REQUIRE_IN_CHILD(!group->locate(memory.get(), 1000));
    return true;
  };
  EXPECT_EQ(run_processes(3, body), std::vector<int>(3, 0));
}

// Where little room is left, MPI is slower and does more.
TEST(RefusedMemory, DoesWithoutASmallFolder) {
  ProcessJob job(2);
  const std::vector<int> ends = run_with_small_folder(2, 64, [&](int rank) {
    const auto group = LocalGroup::create(job.of(rank), kBytes);
    REQUIRE_IN_CHILD(!group->available());
    REQUIRE_IN_CHILD(group->unavailable_reason().ends_with(
        "; by way of /dev/shm, local rank 0: 64 MiB are left in /dev/shm, but 1 GiB are needed"));
    return true;
  });
  if (ends.empty()) GTEST_SKIP() << "no user namespaces are allowed here";
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

}  // namespace
}  // namespace horon::core
