#include "horon/core/transport/mpi_transport.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include <climits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/transport/make_transport.h"
#include "horon/core/transport/routed_transport.h"
#include "horon/core/transport/shared_memory_transport.h"
#include "horon/tests/core/transport/transport_contract.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/mpi_main.h"

namespace {

std::optional<int> told_length;  // of the next messages, instead of their own
bool sends_fail = false;

// While it is on, the first request that is tested ends only after another one.
struct Overtaking {
  bool on = false;
  const MPI_Request* first = nullptr;
  bool has_happened = false;
} overtaking;

}  // namespace

// MPI's profiling interface: this function is called in place of the library's.
extern "C" int MPI_Get_count(const MPI_Status* status, MPI_Datatype type, int* count) {
  const int result = PMPI_Get_count(status, type, count);
  if (told_length) *count = *told_length;
  return result;
}

extern "C" int MPI_Testsome(int count, MPI_Request* requests, int* ended, int* indices,
                            MPI_Status* statuses) {
  const int result = PMPI_Testsome(count, requests, ended, indices, statuses);
  if (!sends_fail || *ended <= 0) return result;
  if (statuses == MPI_STATUSES_IGNORE) return MPI_ERR_IN_STATUS;
  for (int i = 0; i < *ended; ++i) statuses[i].MPI_ERROR = MPI_SUCCESS;
  statuses[*ended - 1].MPI_ERROR = MPI_ERR_TRUNCATE;
  return MPI_ERR_IN_STATUS;
}

extern "C" int MPI_Test(MPI_Request* request, int* ended, MPI_Status* status) {
  if (overtaking.on && overtaking.first == nullptr) overtaking.first = request;
  const bool waits = overtaking.on && request == overtaking.first && !overtaking.has_happened;
  *ended = 0;
  const int result = waits ? MPI_SUCCESS : PMPI_Test(request, ended, status);
  overtaking.has_happened |= overtaking.on && *ended != 0 && request != overtaking.first;
  return result;
}

namespace horon::core {
namespace {

using Body = std::function<void(Transport&)>;

// The transport of a job: shared memory between processes of a host, and MPI too if there are
// several hosts.
struct JobWorld {
  static void run(const Body& body) {
    MpiLibrary library;
    const MpiBootstrap bootstrap(library);
    const Topology& topology = bootstrap.topology();
    const auto group =
        LocalGroup::create(bootstrap, SharedMemoryTransport::area_bytes(topology.local_size));
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    const auto transport = make_transport(bootstrap, *group, group->area(), {});
    EXPECT_NE(transport->must_poll(), topology.one_host());
    body(*transport);
    MPI_Barrier(bootstrap.communicator());
  }
};

// The same job when processes may not share memory.
struct MpiWorld {
  static void run(const Body& body) {
    MpiLibrary library;
    const MpiBootstrap bootstrap(library);
    const Topology& topology = bootstrap.topology();
    const auto group =
        LocalGroup::create_unavailable(topology.local_rank, topology.local_size, "not wanted");
    const auto transport = make_transport(bootstrap, *group, group->area(), {});
    EXPECT_EQ(transport->must_poll(), topology.size > 1);
    body(*transport);
    MPI_Barrier(bootstrap.communicator());
  }
};

// Every other rank is on a second host, so that half of the pairs go through MPI.
struct RoutedWorld {
  static void run(const Body& body) {
    MpiLibrary library;
    const MpiBootstrap bootstrap(library, nullptr, test_rank() % 2 == 0 ? "even" : "odd");
    const Topology& topology = bootstrap.topology();
    const auto group =
        LocalGroup::create(bootstrap, SharedMemoryTransport::area_bytes(topology.local_size));
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    const auto transport = make_transport(bootstrap, *group, group->area(), {});
    EXPECT_EQ(dynamic_cast<RoutedTransport*>(transport.get()) != nullptr, topology.size > 1);
    body(*transport);
    MPI_Barrier(bootstrap.communicator());
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Job, TransportContract, JobWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, TransportContract, MpiWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Routed, TransportContract, RoutedWorld);

// Messages that are never read are lost with their transport: the next one receives its own
// messages only.
TEST(MpiTransport, EndsWithUnreadAndUnsentMessages) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  const int size = bootstrap.topology().size;
  if (size == 1) GTEST_SKIP() << "needs a second rank";
  const int rank = bootstrap.topology().rank;
  const int next = (rank + 1) % size;
  const int previous = (rank + size - 1) % size;
  {
    MpiTransport transport(bootstrap, {});
    transport.send(next, pattern(0, 1, 0, 10));
    transport.send(next, pattern(0, 1, 1, 5'000'000));  // needs the receiver, who never looks
    EXPECT_FALSE(transport.flushed());
    MPI_Barrier(bootstrap.communicator());
  }
  MpiTransport transport(bootstrap, {});
  const Bytes news = pattern(rank, next, 2, 100);
  transport.send(next, news);
  std::optional<Transport::Message> message;
  while (!message) message = transport.receive();
  EXPECT_EQ(message->from, previous);
  EXPECT_EQ(message->bytes, pattern(previous, rank, 2, 100));
  MPI_Barrier(bootstrap.communicator());
  EXPECT_FALSE(transport.receive());
  while (!transport.flushed()) {
  }
}

// The last rank receives what rank 0 sends on the next transport, and nothing older.
void expect_news_alone(const MpiBootstrap& bootstrap) {
  const int last = test_size() - 1;
  MpiTransport later(bootstrap, {});
  if (test_rank() == 0) later.send(last, Bytes(9, std::byte{2}));
  while (test_rank() == last) {
    const std::optional<Transport::Message> message = later.receive();
    if (!message) continue;
    EXPECT_EQ(message->bytes.front(), std::byte{2});
    break;
  }
  while (!later.flushed()) continue;
}

// MPI reuses the number of a communicator that was freed for the next one. A message that was sent
// on the old one would then be received on the new one.
TEST(MpiTransport, WhatAFailedJobLeavesReachesNoLaterOne) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  const int last = test_size() - 1;
  auto transport = std::make_unique<MpiTransport>(bootstrap, WaitPolicy());
  transport->abandon();
  if (test_rank() != 0) transport.reset();
  MPI_Barrier(bootstrap.communicator());
  if (test_rank() == 0) {  // does not know yet, and sends a message that no rank receives
    transport->send(last, Bytes(9, std::byte{1}));
    while (!transport->flushed()) continue;
    transport.reset();
  }
  expect_news_alone(bootstrap);
  MPI_Barrier(bootstrap.communicator());
}

// Nothing has failed, but one rank answers a question that was asked just before the end.
TEST(MpiTransport, WhatComesLateReachesNoLaterOne) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  const int last = test_size() - 1;
  if (last == 0) GTEST_SKIP() << "needs a second rank";
  auto transport = std::make_unique<MpiTransport>(bootstrap, WaitPolicy());
  if (test_rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others are at their end
    transport->send(last, Bytes(9, std::byte{1}));
  }
  transport.reset();
  // While MPI makes a communicator, it would drop the message.
  if (test_rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  expect_news_alone(bootstrap);
}

// What those who have ended leave takes no place from the messages of others.
TEST(MpiTransport, ThoseWhoHaveEndedStopNobodyElse) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  if (test_size() < 3) GTEST_SKIP() << "needs three ranks";
  auto transport = std::make_unique<MpiTransport>(bootstrap, WaitPolicy(), /*arrivals_max=*/1);
  const auto next = [&] {
    std::optional<Transport::Message> message;
    while (!message) message = transport->receive();
    return *message;
  };
  if (test_rank() == 2) transport->send(0, Bytes(9, std::byte{2}));
  if (test_rank() == 1) {
    MPI_Recv(nullptr, 0, MPI_BYTE, 0, 0, bootstrap.communicator(), MPI_STATUS_IGNORE);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // rank 2 is at its end
    transport->send(0, Bytes(9, std::byte{1}));
  }
  if (test_rank() == 0) {
    EXPECT_EQ(next().from, 2);
    MPI_Send(nullptr, 0, MPI_BYTE, 1, 0, bootstrap.communicator());
    EXPECT_EQ(next().from, 1);
  }
  transport.reset();
}

// A rank that does not come to its end, as it is stopped, keeps the others for a moment only.
TEST(MpiTransport, TheEndWaitsForNobodyForEver) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  auto transport = std::make_unique<MpiTransport>(bootstrap, WaitPolicy());
  if (test_rank() != 0) transport.reset();
  MPI_Barrier(bootstrap.communicator());
  transport.reset();
}

TEST(MpiTransport, RefusesMessagesThatAreTooLong) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  if (bootstrap.topology().size == 1) GTEST_SKIP() << "needs a second rank";
  MpiTransport transport(bootstrap, {});
  if (bootstrap.topology().rank == 0) {
    try {
      transport.send(1, Bytes(MpiTransport::kMessageBytesMax + 1));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Limit);
      EXPECT_THAT(error.what(), testing::HasSubstr("256 MiB"));
    }
    EXPECT_TRUE(transport.flushed());
  }
  MPI_Barrier(bootstrap.communicator());
}

// So all that can be reached hear of the end of a job, though sends to others fail meanwhile.
TEST(MpiTransport, TheErrorOfASendIsItsOwnAndStopsNoOther) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  MpiTransport transport(bootstrap, {});
  if (test_rank() == 0) {
    transport.send(1, pattern(0, 1, 0, 10));
    const auto flush = [&] {
      while (!transport.flushed()) {
      }
    };
    sends_fail = true;
    const auto send_on = [&] {
      transport.send(1, pattern(0, 1, 1, 10));
      flush();  // where MPI has not finished it at once
    };
    EXPECT_THAT(test::error_of(send_on), testing::ContainsRegex("MPI_Testsome.*truncated"));
    sends_fail = false;
    flush();
  }
  int received = 0;
  const auto limit = std::chrono::steady_clock::now() + kLongEnough;
  while (test_rank() == 1 && received < 2 && std::chrono::steady_clock::now() < limit) {
    if (transport.receive()) ++received;
  }
  EXPECT_EQ(received, test_rank() == 1 ? 2 : 0);
  MPI_Barrier(bootstrap.communicator());
}

// MPI may end the receive of a long message after that of a short one.
TEST(MpiTransport, AMessageIsNotOvertakenByALaterOneOfItsRank) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  MpiTransport transport(bootstrap, {});
  Talk talk(transport);
  if (test_rank() == 1) {
    for (const uint64_t index : {0, 1}) talk.send(0, index, 10);
  }
  if (test_rank() == 0) {
    overtaking = {.on = true};
    for (const uint64_t index : {0, 1}) talk.expect(1, index, 10);
    EXPECT_TRUE(overtaking.has_happened);
    overtaking = {};
  }
  flush(transport);
  MPI_Barrier(bootstrap.communicator());
}

TEST(MpiTransport, ALengthThatCantBeIsAnErrorAndAllocatesNothing) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  const int rank = bootstrap.topology().rank;
  for (const int length : {static_cast<int>(MpiTransport::kMessageBytesMax) + 1, INT_MAX, -1}) {
    MpiTransport transport(bootstrap, {});
    if (rank == 0) transport.send(1, pattern(0, 1, 0, 10));
    if (rank == 1) {
      told_length = length;
      try {
        while (!transport.receive()) {
        }
        ADD_FAILURE() << "no error for " << length;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::Internal);
        EXPECT_THAT(error.what(), testing::HasSubstr("rank 0 sent a control message"));
      }
      told_length.reset();
    }
    MPI_Barrier(bootstrap.communicator());
  }
}

}  // namespace
}  // namespace horon::core
