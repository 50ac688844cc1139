#include "horon/core/transport/mpi_transport.h"

#include <functional>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/core/transport/make_transport.h"
#include "horon/core/transport/routed_transport.h"
#include "horon/core/transport/shared_memory_transport.h"
#include "horon/tests/core/transport/transport_contract.h"
#include "horon/tests/support/mpi_main.h"

namespace horon::core {
namespace {

using Body = std::function<void(Transport&)>;

// What a job gets: shared memory between processes of a host, MPI besides if there are several.
struct JobWorld {
  static void run(const Body& body) {
    const MpiSession session;
    const Topology& topology = session.topology();
    const auto group = LocalGroup::create(topology.local_rank, topology.local_size,
                                          SharedMemoryTransport::area_bytes(topology.local_size),
                                          session.host_exchange());
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    const auto transport = make_transport(session, *group, group->area(), {});
    EXPECT_NE(transport->must_poll(), topology.one_host());
    body(*transport);
    MPI_Barrier(session.communicator());
  }
};

// The same job when processes may not share memory.
struct MpiWorld {
  static void run(const Body& body) {
    const MpiSession session;
    const Topology& topology = session.topology();
    const auto group =
        LocalGroup::create_unavailable(topology.local_rank, topology.local_size, "not wanted");
    const auto transport = make_transport(session, *group, group->area(), {});
    EXPECT_EQ(transport->must_poll(), topology.size > 1);
    body(*transport);
    MPI_Barrier(session.communicator());
  }
};

// Pretends that every other rank is on a second host, so that half of the pairs go through MPI.
struct RoutedWorld {
  static void run(const Body& body) {
    const MpiSession session;
    const int rank = session.topology().rank;
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(session.communicator(), rank % 2, rank, &host), "MPI_Comm_split");
    std::vector<int> hosts;
    for (int other = 0; other < session.topology().size; ++other) hosts.push_back(other % 2);
    const Topology topology = make_topology(rank, hosts);
    const auto exchange = [&](std::span<const std::byte> mine) {
      std::vector<std::byte> all(mine.size() * static_cast<size_t>(topology.local_size));
      const int bytes = static_cast<int>(mine.size());
      check_mpi(MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, host),
                "MPI_Allgather");
      return all;
    };
    const auto group =
        LocalGroup::create(topology.local_rank, topology.local_size,
                           SharedMemoryTransport::area_bytes(topology.local_size), exchange);
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    {
      RoutedTransport transport(
          std::make_unique<SharedMemoryTransport>(*group, group->area(), topology, WaitPolicy{}),
          std::make_unique<MpiTransport>(session, WaitPolicy{}));
      EXPECT_TRUE(transport.must_poll());
      body(transport);
      MPI_Barrier(session.communicator());
    }
    MPI_Comm_free(&host);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Job, TransportContract, JobWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Mpi, TransportContract, MpiWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(Routed, TransportContract, RoutedWorld);

TEST(MpiTransport, EndsWithUnreadAndUnsentMessages) {
  const MpiSession session;
  const int next = (session.topology().rank + 1) % session.topology().size;
  {
    MpiTransport transport(session, {});
    if (session.topology().size > 1) {
      transport.send(next, pattern(0, 1, 0, 10));
      transport.send(next, pattern(0, 1, 1, 5'000'000));  // needs the receiver, who never looks
    }
  }
  MPI_Barrier(session.communicator());
}

TEST(MpiTransport, RefusesMessagesThatAreTooLong) {
  const MpiSession session;
  if (session.topology().size == 1) GTEST_SKIP() << "needs a second rank";
  MpiTransport transport(session, {});
  if (session.topology().rank == 0) {
    try {
      transport.send(1, Bytes(MpiTransport::kMessageBytesMax + 1));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Limit);
      EXPECT_THAT(error.what(), testing::HasSubstr("256 MiB"));
    }
    EXPECT_TRUE(transport.flushed());
  }
  MPI_Barrier(session.communicator());
}

}  // namespace
}  // namespace horon::core
