#include "horon/core/host/local_group.h"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <set>
#include <signal.h>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/host/mapped_group.h"
#include "horon/core/host/named_file.h"
#include "horon/core/host/shared_heap.h"
#include "horon/core/transport/shared_memory_transport.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/own_user_namespace.h"
#include "horon/tests/support/process_ranks.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::core {
namespace {

// The parent does not see gtest's failures in a child process; this prints where it failed.
bool check(bool condition, const char* what, int rank) {
  if (!condition) std::fprintf(stderr, "rank %d: not true: %s\n", rank, what);
  return condition;
}
#define CHECK_CHILD(condition) \
  if (!check((condition), #condition, rank)) return false

const std::vector<int> kAllWell(3, 0);
constexpr size_t kAreaBytes = 10'000;

// ByName: the calling process enters a user namespace of its own, so that the others can reach it
// only by name.
std::unique_ptr<LocalGroup> make_group(int rank, ProcessJob& job, Reach reach = Reach::ByProcess,
                                       size_t area_bytes = kAreaBytes) {
  if (reach == Reach::ByName && !enter_own_user_namespace()) {
    throw std::runtime_error("no user namespace");
  }
  auto group = LocalGroup::create(job.of(rank), area_bytes);
  if (group->available() && group->reach() != reach) throw std::runtime_error("another reach");
  return group;
}

class LocalGroupThatReaches : public testing::TestWithParam<Reach> {
 protected:
  void SetUp() override {
    if (GetParam() == Reach::ByProcess) return;
    if (!allows_user_namespaces()) GTEST_SKIP() << "no user namespaces are allowed here";
    if (const auto why = why_no_named_files(); !why.empty()) GTEST_SKIP() << why;
  }
};
INSTANTIATE_TEST_SUITE_P(, LocalGroupThatReaches, testing::Values(Reach::ByProcess, Reach::ByName),
                         [](const auto& tested) {
                           return tested.param == Reach::ByName ? "ByName" : "ByProcess";
                         });

bool is_filled(const std::byte* data, size_t bytes, int value) {
  return std::all_of(data, data + bytes,
                     [value](std::byte byte) { return byte == static_cast<std::byte>(value); });
}

TEST_P(LocalGroupThatReaches, SharesAnAreaBetweenProcesses) {
  ProcessJob job(3);
  const auto body = [&](int rank) {
    const auto group = make_group(rank, job, GetParam());
    CHECK_CHILD(group->available());
    CHECK_CHILD(group->local_rank() == rank && group->local_size() == 3);
    CHECK_CHILD(group->process_id(rank) == getpid());
    CHECK_CHILD(reinterpret_cast<uintptr_t>(group->area()) % 64 == 0);
    CHECK_CHILD(is_filled(group->area(), kAreaBytes, 0));
    job.barrier();
    constexpr size_t kPart = kAreaBytes / 3;
    std::memset(group->area() + static_cast<size_t>(rank) * kPart, rank + 1, kPart);
    job.barrier();
    for (int other = 0; other < 3; ++other) {
      CHECK_CHILD(is_filled(group->area() + static_cast<size_t>(other) * kPart, kPart, other + 1));
    }
    return true;
  };
  EXPECT_EQ(run_processes(3, body), kAllWell);
}

TEST_P(LocalGroupThatReaches, RingsBetweenProcesses) {
  ProcessJob job(3);
  const auto body = [&](int rank) {
    const auto group = make_group(rank, job, GetParam());
    const WaitPolicy sleep_at_once = {std::chrono::nanoseconds(0), {0}};
    for (int i = 0; i < 200; ++i) {
      const int turn = i % 3;
      if (rank == turn) group->ring_all_others();
      if (rank != turn) {
        CHECK_CHILD(group->doorbell(rank).wait(kLongEnough, sleep_at_once));
      }
      job.barrier();
    }
    CHECK_CHILD(!group->doorbell(rank).wait(std::chrono::milliseconds(1), sleep_at_once));
    return true;
  };
  EXPECT_EQ(run_processes(3, body), kAllWell);
}

TEST_P(LocalGroupThatReaches, MapsThePeersMemory) {
  ProcessJob job(3);
  const auto body = [&](int rank) {
    const auto group = make_group(rank, job, GetParam());
    for (const size_t bytes : {size_t{100}, size_t{5000}, size_t{100}, size_t{3'000'000}}) {
      const auto memory = group->allocate(bytes);
      CHECK_CHILD(is_filled(memory.get(), bytes, 0));
      const auto address = group->locate(memory.get(), bytes);
      CHECK_CHILD(address.has_value());
      const auto all = allgather_values(job.of(rank), Bootstrap::Among::Host, *address);
      for (int other = 0; other < 3; ++other) {
        const SharedAddress& theirs = all[static_cast<size_t>(other)];
        std::byte* const mapped = group->map(other, theirs);
        CHECK_CHILD(mapped == group->map(other, theirs));
        CHECK_CHILD((other == rank) == (mapped == memory.get()));
        // Each rank writes its part of every rank's memory.
        const size_t part = bytes / 3;
        std::memset(mapped + static_cast<size_t>(rank) * part, rank + 1, part);
      }
      job.barrier();
      for (int other = 0; other < 3; ++other) {
        const size_t part = bytes / 3;
        CHECK_CHILD(is_filled(memory.get() + static_cast<size_t>(other) * part, part, other + 1));
      }
      job.barrier();
    }
    return true;
  };
  EXPECT_EQ(run_processes(3, body), kAllWell);
}

TEST_P(LocalGroupThatReaches, RefusesAddressesOfOtherSegments) {
  ProcessJob job(2);
  const auto body = [&](int rank) {
    const auto group = make_group(rank, job, GetParam());
    const auto memory = group->allocate(100);
    auto address = group->locate(memory.get(), 100).value();
    ++address.generation;
    const int other = 1 - rank;
    address =
        allgather_values(job.of(rank), Bootstrap::Among::Host, address)[static_cast<size_t>(other)];
    for (const uint64_t segment : {address.segment, uint64_t{0}, uint64_t{777}}) {
      address.segment = segment;
      try {
        group->map(other, address);
        CHECK_CHILD(!"an error was thrown");
      } catch (const Error& error) {
        CHECK_CHILD(error.code() == ErrorCode::OperationFailed);
      }
    }
    job.barrier();
    return true;
  };
  EXPECT_EQ(run_processes(2, body), std::vector<int>(2, 0));
}

TEST_P(LocalGroupThatReaches, SeesThatAPeerHasEnded) {
  ProcessJob job(3);
  ProcessJob survivors(2);  // a rank that leaves early is dead as well
  const auto body = [&](int rank) {
    const auto group = make_group(rank, job, GetParam());
    CHECK_CHILD(group->dead_local_ranks().empty());
    job.barrier();
    if (rank == 1) raise(SIGKILL);
    while (group->dead_local_ranks().empty()) std::this_thread::yield();
    CHECK_CHILD(group->dead_local_ranks() == std::vector<int>{1});
    survivors.barrier();
    return true;
  };
  EXPECT_EQ(run_processes(3, body), (std::vector<int>{0, SIGKILL, 0}));
}

// A segment whose descriptor has the number of an earlier one.
TEST(LocalGroup, MapsOtherSegmentsOfAPeerAnew) {
  MappedGroup::Parts parts;
  parts.ranks = {0, 1};
  parts.peers.resize(2);
  parts.peers[0].heap = std::make_shared<SharedHeap>();
  parts.peers[1].process_id = getpid();
  MappedGroup group(std::move(parts));
  constexpr size_t kBytes = size_t{1} << 20;
  std::set<uint64_t> descriptors;
  for (const int value : {1, 2, 3}) {
    const auto heap = std::make_shared<SharedHeap>();
    const auto block = heap->allocate(kBytes, true);
    std::memset(block.get(), value, kBytes);
    const SharedAddress address = heap->locate(block.get(), kBytes).value();
    EXPECT_TRUE(is_filled(group.map(1, address), kBytes, value));
    descriptors.insert(address.segment);
  }
  EXPECT_EQ(descriptors.size(), 1U) << "that is no test";
}

// The address of the dead peer's memory is known, but no rank has mapped it. The descriptors of a
// process that ends are gone before the kernel reports its end.
TEST(LocalGroup, MemoryOfADeadPeerNamesIt) {
  ProcessJob job(3);
  ProcessJob survivors(2);
  const auto body = [&](int rank) {
    const auto group = make_group(rank, job);
    const auto memory = group->allocate(10'000'000);
    const auto addresses = allgather_values(job.of(rank), Bootstrap::Among::Host,
                                            group->locate(memory.get(), 100).value());
    if (rank == 1) raise(SIGKILL);
    const int pid = group->process_id(1);
    const std::string file =
        "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(addresses[1].segment);
    while (access(file.c_str(), F_OK) == 0) std::this_thread::yield();
    try {
      group->map(1, addresses[1]);
      CHECK_CHILD(!"an error was thrown");
    } catch (const Error& error) {
      const std::string text = error.what();
      CHECK_CHILD(error.code() == ErrorCode::PeerDead);
      CHECK_CHILD(text.starts_with("rank 1 (pid " + std::to_string(pid) + " on "));
      CHECK_CHILD(text.ends_with(") has died"));
    }
    survivors.barrier();
    return true;
  };
  EXPECT_EQ(run_processes(3, body), (std::vector<int>{0, SIGKILL, 0}));
}

// Where the system forbids them, there are no copies, and the reason is told.
TEST(LocalGroup, CopiesBetweenPrivateMemories) {
  ProcessJob job(3);
  ProcessJob survivors(2);
  const auto body = [&](int rank) {
    const auto group = make_group(rank, job);
    if (!group->copies_between_processes()) {
      CHECK_CHILD(group->no_copies_reason().find("process_vm_") != std::string::npos);
      if (rank == 1) raise(SIGKILL);
      return true;
    }
    constexpr size_t kBytes = 1'000'003;
    std::vector<std::byte> mine(kBytes, static_cast<std::byte>(rank + 1));
    std::vector<std::byte> got(kBytes);
    const auto all = allgather_values(job.of(rank), Bootstrap::Among::Host,
                                      reinterpret_cast<uint64_t>(mine.data()));
    for (int other = 0; other < 3; ++other) {
      group->read(other, got.data(), all[static_cast<size_t>(other)], kBytes);
      CHECK_CHILD(is_filled(got.data(), kBytes, other + 1));
    }
    job.barrier();
    constexpr size_t kPart = kBytes / 3;
    for (int other = 0; other < 3; ++other) {  // each rank writes its part of every rank's memory
      const std::vector<std::byte> part(kPart, static_cast<std::byte>(10 + rank));
      group->write(other, all[static_cast<size_t>(other)] + static_cast<size_t>(rank) * kPart,
                   part.data(), kPart);
    }
    job.barrier();
    for (int other = 0; other < 3; ++other) {
      CHECK_CHILD(is_filled(mine.data() + static_cast<size_t>(other) * kPart, kPart, 10 + other));
    }
    try {  // what is not there
      group->read((rank + 1) % 3, got.data(), 64, kBytes);
      CHECK_CHILD(!"an error was thrown");
    } catch (const Error& error) {
      CHECK_CHILD(error.code() == ErrorCode::OperationFailed);
      CHECK_CHILD(std::string(error.what()).find("HORON_CMA=off") != std::string::npos);
    }
    job.barrier();
    if (rank == 1) raise(SIGKILL);
    while (group->dead_local_ranks().empty()) std::this_thread::yield();
    try {
      group->write(1, all[1], mine.data(), kBytes);
      CHECK_CHILD(!"an error was thrown");
    } catch (const Error& error) {
      CHECK_CHILD(error.code() == ErrorCode::PeerDead);
      CHECK_CHILD(std::string(error.what()).starts_with("rank 1 (pid "));
    }
    survivors.barrier();
    return true;
  };
  EXPECT_EQ(run_processes(3, body), (std::vector<int>{0, SIGKILL, 0}));
}

TEST(LocalGroup, CopiesCanBeLeftOut) {
  ProcessJob job(2);
  const auto body = [&](int rank) {
    const auto group = LocalGroup::create(job.of(rank), kAreaBytes, LocalGroup::ProcessCopies::Off);
    CHECK_CHILD(group->available() && !group->copies_between_processes());
    CHECK_CHILD(group->no_copies_reason() == "HORON_CMA=off");
    return true;
  };
  EXPECT_EQ(run_processes(2, body), std::vector<int>(2, 0));
}

TEST_P(LocalGroupThatReaches, ATransportNamesTheDeadPeer) {
  ProcessJob job(3);
  ProcessJob survivors(2);
  const auto body = [&](int rank) {
    const auto group = make_group(rank, job, GetParam(), SharedMemoryTransport::area_bytes(3));
    const Topology topology = make_topology(2 * rank + 1, std::vector<int>{0, 1, 0, 1, 0, 1});
    SharedMemoryTransport transport(*group, group->area(), topology, {});
    CHECK_CHILD(transport.dead_peers().empty());
    job.barrier();
    if (rank == 2) _exit(0);  // an end without an error is an end, too
    while (transport.dead_peers().empty()) std::this_thread::yield();
    const Transport::DeadPeer dead = transport.dead_peers().front();
    CHECK_CHILD(dead.rank == 5);
    const std::string& text = dead.text;
    CHECK_CHILD(text.starts_with("rank 5 (pid " + std::to_string(group->process_id(2)) + " on "));
    survivors.barrier();
    return true;
  };
  EXPECT_EQ(run_processes(3, body), kAllWell);
}

TEST(LocalGroup, NeedsTheSameAreaOnAllRanks) {
  InProcessJob job(3);
  run_ranks(3, [&](int rank) {
    try {
      LocalGroup::create(job.of(rank), rank == 2 ? 64 : 128);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Config);
      EXPECT_THAT(error.what(), testing::HasSubstr("local ranks 0 and 2"));
    }
  });
}

TEST(LocalGroup, WorksAmongThreads) {
  InProcessJob job(4);
  std::vector<SharedAddress> addresses(4);
  std::vector<std::byte*> places(4);
  std::barrier<> step(4);
  run_ranks(4, [&](int rank) {
    auto group = LocalGroup::create(job.of(rank), kAreaBytes);
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    EXPECT_TRUE(group->dead_local_ranks().empty());
    const auto memory = group->allocate(100'000);
    const auto me = static_cast<size_t>(rank);
    places[me] = memory.get();
    addresses[me] = group->locate(memory.get(), 100'000).value();
    step.arrive_and_wait();
    for (size_t other = 0; other < 4; ++other) {
      EXPECT_EQ(group->map(static_cast<int>(other), addresses[other]), places[other]);
    }
    if (rank == 0) group.reset();  // the others still use its area
    step.arrive_and_wait();
    if (rank != 0) group->area()[rank] = std::byte{1};
    step.arrive_and_wait();
  });
}

TEST(LocalGroup, MemoryThatAThreadHasGivenBackIsGone) {
  MappedGroup::Parts parts;
  parts.ranks = {0, 7};
  parts.peers.resize(2);
  parts.peers[1].heap = std::make_shared<SharedHeap>(0);
  auto memory = parts.peers[1].heap->allocate(1 << 20, true);
  const SharedAddress address = parts.peers[1].heap->locate(memory.get(), 1 << 20).value();
  MappedGroup group(std::move(parts));
  EXPECT_EQ(group.map(1, address), memory.get());
  memory.reset();
  EXPECT_THAT(test::error_of([&] { group.map(1, address); }),
              testing::MatchesRegex("failed: shared memory of rank 7 .* is gone"));
}

TEST(LocalGroup, OneRankIsAGroup) {
  InProcessJob job(1);
  const auto group = LocalGroup::create(job.of(0), 0);
  EXPECT_TRUE(group->available());
  group->ring_all_others();
  const auto memory = group->allocate(10);
  EXPECT_EQ(group->map(0, group->locate(memory.get(), 10).value()), memory.get());
  EXPECT_TRUE(group->dead_local_ranks().empty());
}

TEST(LocalGroup, CanBeUnwanted) {
  const auto group = LocalGroup::create_unavailable(1, 2, "HORON_SHARED_MEMORY=0");
  EXPECT_FALSE(group->available());
  EXPECT_EQ(group->unavailable_reason(), "HORON_SHARED_MEMORY=0");
  EXPECT_EQ(group->local_rank(), 1);
  EXPECT_EQ(group->local_size(), 2);
  EXPECT_NE(group->allocate(0), nullptr);
  EXPECT_THROW(group->allocate(size_t{1} << 60), Error);
  EXPECT_THROW(group->map(0, {}), Error);
}

TEST(LocalGroupDeathTest, HasOnlyTheOwnDoorbellWithoutSharedMemory) {
  const auto group = LocalGroup::create_unavailable(1, 2, "not wanted");
  EXPECT_DEATH(group->doorbell(0), "own doorbell");
}

}  // namespace
}  // namespace horon::core
