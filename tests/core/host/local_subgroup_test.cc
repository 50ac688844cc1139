// Subgroups of the ranks of a host, with processes and threads as ranks.
#include "horon/core/host/local_subgroup.h"

#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/host/named_file.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/own_user_namespace.h"
#include "horon/tests/support/process_ranks.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::core {
namespace {

constexpr size_t kAreaBytes = 10'000;
const WaitPolicy kSleepAtOnce = {std::chrono::nanoseconds(0), {0}};

#define CHECK_CHILD(condition)                                         \
  if (!(condition)) {                                                  \
    std::fprintf(stderr, "rank %d: not true: %s\n", rank, #condition); \
    return false;                                                      \
  }

// The subgroup of a rank: ranks 0 and 2, ranks 1 and 3, and none for rank 4.
std::vector<int> part_of(int rank) {
  if (rank == 4) return {};
  return {rank % 2, rank % 2 + 2};
}

// In the pairs {0, 2} and {1, 3}, each rank writes a word to the other's memory, and reads the
// other's words.
bool copies_to_the_other(LocalGroup& part, int rank, ProcessJob& job) {
  struct Words {
    int64_t mine;
    int64_t given;
  } words{rank, -1};
  auto* const addresses = reinterpret_cast<uint64_t*>(part.area() + 64);
  addresses[part.local_rank()] = reinterpret_cast<uint64_t>(&words);
  job.barrier();
  const int other = 1 - part.local_rank();
  const int other_rank = (rank + 2) % 4;
  const uint64_t there = addresses[other];
  part.write(other, there + offsetof(Words, given), reinterpret_cast<std::byte*>(&words.mine),
             sizeof(words.mine));
  Words seen{};
  part.read(other, reinterpret_cast<std::byte*>(&seen), there, sizeof(seen));
  CHECK_CHILD(seen.mine == other_rank && seen.given == rank);
  job.barrier();
  CHECK_CHILD(words.given == other_rank);
  return true;
}

bool check_part(int rank, const std::shared_ptr<LocalGroup>& group, ProcessJob& job) {
  const auto part = make_local_subgroup(group, job.of(rank), part_of(rank), kAreaBytes);
  CHECK_CHILD((part == nullptr) == (rank == 4));
  if (part == nullptr) {
    for (int i = 0; i < 6; ++i) job.barrier();
    return true;
  }
  const int me = rank / 2;
  CHECK_CHILD(part->available() && part->local_rank() == me && part->local_size() == 2);
  CHECK_CHILD(part->process_id(me) == getpid());
  std::byte* const area = part->area();
  CHECK_CHILD(reinterpret_cast<uintptr_t>(area) % 64 == 0);
  CHECK_CHILD(std::all_of(area, area + kAreaBytes, [](std::byte b) { return b == std::byte{}; }));
  job.barrier();
  area[me] = static_cast<std::byte>(rank + 1);
  job.barrier();
  // Each pair has an area of its own.
  CHECK_CHILD(area[1 - me] == static_cast<std::byte>((rank + 2) % 4 + 1));
  CHECK_CHILD(part->copies_between_processes() == group->copies_between_processes());
  if (part->copies_between_processes()) {
    CHECK_CHILD(copies_to_the_other(*part, rank, job));
  } else {
    for (int i = 0; i < 2; ++i) job.barrier();
  }
  part->ring_all_others();
  CHECK_CHILD(part->doorbell(me).wait(kLongEnough, kSleepAtOnce));
  job.barrier();
  CHECK_CHILD(&part->doorbell(me) == &group->doorbell(rank));
  CHECK_CHILD(!group->doorbell(rank).wait(std::chrono::milliseconds(1), kSleepAtOnce));
  job.barrier();
  return true;
}

bool check_parts(int rank, Reach reach, ProcessJob& job) {
  const std::shared_ptr<LocalGroup> group = LocalGroup::create(job.of(rank), 0);
  CHECK_CHILD(group->available() && group->reach() == reach);
  for (int i = 0; i < 3; ++i) {
    if (!check_part(rank, group, job)) return false;
  }
  return true;
}

TEST(LocalSubgroup, SharesAnAreaBetweenProcesses) {
  ProcessJob job(5);
  const auto body = [&](int rank) { return check_parts(rank, Reach::ByProcess, job); };
  EXPECT_EQ(run_processes(5, body), std::vector<int>(5, 0));
}

TEST(LocalSubgroup, SharesAnAreaBetweenContainers) {
  if (!allows_user_namespaces()) GTEST_SKIP() << "no user namespaces are allowed here";
  if (const auto why = why_no_named_files(); !why.empty()) GTEST_SKIP() << why;
  ProcessJob job(5);
  const auto body = [&](int rank) {
    return enter_own_user_namespace() && check_parts(rank, Reach::ByName, job);
  };
  EXPECT_EQ(run_processes(5, body), std::vector<int>(5, 0));
}

TEST(LocalSubgroup, SeesThatAMemberHasEnded) {
  ProcessJob job(3);
  ProcessJob survivors(2);
  const auto body = [&](int rank) {
    const std::shared_ptr<LocalGroup> group = LocalGroup::create(job.of(rank), 0);
    const auto low =
        make_local_subgroup(group, job.of(rank), rank < 2 ? std::vector{0, 1} : std::vector{2}, 64);
    const auto high =
        make_local_subgroup(group, job.of(rank), rank > 0 ? std::vector{1, 2} : std::vector{0}, 64);
    job.barrier();
    if (rank == 2) _exit(0);
    while (group->dead_local_ranks().empty()) std::this_thread::yield();
    CHECK_CHILD(low->dead_local_ranks().empty());
    CHECK_CHILD(rank == 0 || high->dead_local_ranks() == std::vector<int>{1});
    survivors.barrier();
    return true;
  };
  EXPECT_EQ(run_processes(3, body), std::vector<int>(3, 0));
}

TEST(LocalSubgroup, SharesTheMemoryOfTheWholeGroup) {
  InProcessJob job(3);
  run_ranks(3, [&](int rank) {
    const std::shared_ptr<LocalGroup> group = LocalGroup::create(job.of(rank), 0);
    const auto memory = group->allocate(1000);  // before the subgroup was made
    const auto part = make_local_subgroup(
        group, job.of(rank), rank == 0 ? std::vector<int>{} : std::vector{1, 2}, kAreaBytes);
    const auto address = rank == 0 ? SharedAddress{} : part->locate(memory.get(), 1000).value();
    const auto all = allgather_values(job.of(rank), Bootstrap::Among::Host, address);
    if (rank == 1) {
      EXPECT_EQ(part->map(1, all[2]), group->map(2, all[2]));
      EXPECT_EQ(part->map(0, all[1]), memory.get());
      EXPECT_TRUE(group->locate(part->allocate(10).get(), 10).has_value());
    }
    (void)allgather_values(job.of(rank), Bootstrap::Among::Host, 0);
  });
}

// The first rank of {0, 1} has no memory for such an area. No rank gets one, and all can say why.
TEST(LocalSubgroup, IsUnavailableToAllIfItIsToOne) {
  InProcessJob job(3);
  run_ranks(3, [&](int rank) {
    const std::shared_ptr<LocalGroup> group = LocalGroup::create(job.of(rank), 0);
    const size_t bytes = rank == 0 ? size_t{1} << 60 : kAreaBytes;
    const auto part = make_local_subgroup(group, job.of(rank),
                                          rank == 2 ? std::vector{2} : std::vector{0, 1}, bytes);
    EXPECT_FALSE(part->available());
    EXPECT_THAT(part->unavailable_reason(), testing::StartsWith("local rank 0: no memory"));
    EXPECT_EQ(part->local_rank(), rank % 2);
    EXPECT_EQ(part->local_size(), rank == 2 ? 1 : 2);
    EXPECT_EQ(part->area(), nullptr);
  });
}

TEST(LocalSubgroup, OfAGroupWithoutSharedMemoryHasNone) {
  InProcessJob job(std::vector<int>{0, 0, 1});
  run_ranks(3, [&](int rank) {
    const std::shared_ptr<LocalGroup> group =
        rank == 2 ? LocalGroup::create(job.of(rank), 0)
                  : LocalGroup::create_unavailable(rank, 2, "not wanted");
    const auto part = make_local_subgroup(
        group, job.of(rank), rank == 2 ? std::vector{0} : std::vector{0, 1}, kAreaBytes);
    EXPECT_EQ(part->available(), rank == 2);
    EXPECT_EQ(part->unavailable_reason(), rank == 2 ? "" : "not wanted");
  });
}

}  // namespace
}  // namespace horon::core
