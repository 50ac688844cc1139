#include "horon/core/transport/shared_memory_transport.h"

#include <barrier>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "horon/tests/core/transport/transport_contract.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::core {
namespace {

// Ranks as threads; ranks as processes are in mpi_transport_test.cc. Policy 0 sleeps at once, so
// that every wake-up is a real one; policy 1 spins.
template <int kSize, int kPolicy>
struct ThreadWorld {
  static void run(const std::function<void(Transport&)>& body) {
    const WaitPolicy policy = kPolicy == 0 ? WaitPolicy{std::chrono::nanoseconds(0), {0}}
                                           : WaitPolicy{std::chrono::microseconds(20), {5}};
    InProcessJob job(kSize);
    std::barrier<> end(kSize);
    run_ranks(kSize, [&](int rank) {
      constexpr size_t kBefore = 256;  // others use the area too
      const auto group =
          LocalGroup::create(job.of(rank), kBefore + SharedMemoryTransport::area_bytes(kSize));
      ASSERT_TRUE(group->available()) << group->unavailable_reason();
      SharedMemoryTransport transport(*group, group->area() + kBefore,
                                      one_host_topology(rank, kSize), policy);
      EXPECT_FALSE(transport.must_poll());
      body(transport);
      end.arrive_and_wait();
      for (size_t i = 0; i < kBefore; ++i) EXPECT_EQ(group->area()[i], std::byte{0});
    });
  }
};

using Worlds = testing::Types<ThreadWorld<1, 0>, ThreadWorld<2, 0>, ThreadWorld<3, 0>,
                              ThreadWorld<4, 0>, ThreadWorld<2, 1>, ThreadWorld<5, 1>>;
INSTANTIATE_TYPED_TEST_SUITE_P(SharedMemory, TransportContract, Worlds);

// The area grows with the square of the number of ranks, so the rings are shorter on hosts with
// very many.
TEST(SharedMemoryTransport, NeedsAModestArea) {
  EXPECT_GE(SharedMemoryTransport::area_bytes(1), size_t{1});
  for (const int size : {2, 3, 8, 64, 128, 200, 256}) {
    const size_t bytes = SharedMemoryTransport::area_bytes(size);
    EXPECT_EQ(bytes % 64, 0U) << size;
    EXPECT_GE(bytes, static_cast<size_t>(size) * static_cast<size_t>(size - 1) * 1024) << size;
    EXPECT_LE(bytes, size_t{96} << 20) << size;
  }
}

// Calls body(rank, transport, area, step) for each rank, on a thread of its own. All call
// step.arrive_and_wait() equally often.
template <class Body>
void with_transports(int size, const Body& body) {
  InProcessJob job(size);
  std::barrier<> step(size);
  run_ranks(size, [&](int rank) {
    const auto group = LocalGroup::create(job.of(rank), SharedMemoryTransport::area_bytes(size));
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    SharedMemoryTransport transport(*group, group->area(), one_host_topology(rank, size), {});
    body(rank, transport, group->area(), step);
    step.arrive_and_wait();
  });
}

TEST(SharedMemoryTransport, FlushedSaysWhetherTheReaderHasToMakeRoom) {
  with_transports(2, [](int rank, Transport& transport, std::byte*, std::barrier<>& step) {
    constexpr size_t kLength = 100'000;
    if (rank == 0) {
      transport.send(1, pattern(0, 1, 0, 10));
      EXPECT_TRUE(transport.flushed());
      transport.send(1, pattern(0, 1, 1, kLength));
      EXPECT_FALSE(transport.flushed());
      step.arrive_and_wait();
      flush(transport);
    } else {
      step.arrive_and_wait();
      Talk talk(transport);
      talk.expect(0, 0, 10);
      talk.expect(0, 1, kLength);
    }
  });
}

// Rank 0 of three, when the others have sent it three messages each.
void receive_from_two(const std::function<void(Transport&)>& receive) {
  with_transports(3, [&](int rank, Transport& transport, std::byte*, std::barrier<>& step) {
    for (int i = 0; i < 3 && rank > 0; ++i) transport.send(0, Bytes(10));
    step.arrive_and_wait();
    if (rank == 0) receive(transport);
  });
}

TEST(SharedMemoryTransport, AFloodFromOnePeerDoesNotSilenceTheOthers) {
  receive_from_two([](Transport& transport) {
    std::vector<int> from;
    while (const auto message = transport.receive()) from.push_back(message->from);
    EXPECT_EQ(from, (std::vector<int>{1, 2, 1, 2, 1, 2}));
  });
}

TEST(SharedMemoryTransport, AWaitEndsWhileAMessageIsUnread) {
  receive_from_two([](Transport& transport) {
    const auto start = std::chrono::steady_clock::now();
    for (int message = 0; message < 6; ++message) {
      transport.wait(kLongEnough, {});  // the first one takes the ring
      EXPECT_TRUE(transport.receive());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, kLongEnough);
  });
}

TEST(SharedMemoryTransport, LengthsBeyondTheLimitAreErrorsOnBothSides) {
  constexpr int kSize = 2;
  with_transports(kSize, [](int rank, Transport& transport, std::byte* area, std::barrier<>& step) {
    if (rank == 0) {
      EXPECT_THROW(transport.send(1, Bytes(Transport::kMessageBytesMax + 1)), Error);
      // Writes a length, as a stray write could, in the ring from rank 0 to rank 1.
      const size_t ring_bytes = SharedMemoryTransport::area_bytes(kSize) / (kSize * kSize);
      ByteRing ring(area + ring_bytes, ring_bytes - ByteRing::bytes_needed(0));
      const uint64_t length = uint64_t{1} << 60;
      EXPECT_EQ(ring.write(std::as_bytes(std::span(&length, 1))), sizeof length);
    }
    step.arrive_and_wait();
    if (rank == 1) {
      try {
        (void)transport.receive();
        ADD_FAILURE() << "must throw";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("rank 0 sent"), std::string::npos);
      }
    }
  });
}

TEST(SharedMemoryTransportDeathTest, RefusesRanksThatItCanNotReach) {
  const InProcessJob job(1);
  const auto group = LocalGroup::create(job.of(0), SharedMemoryTransport::area_bytes(1));
  const Topology topology = make_topology(0, std::vector<int>{0, 1});
  SharedMemoryTransport transport(*group, group->area(), topology, {});
  EXPECT_TRUE(transport.reaches(0));
  EXPECT_FALSE(transport.reaches(1));
  EXPECT_FALSE(transport.reaches(2));
  EXPECT_DEATH(transport.send(1, {}), "of this host");
  EXPECT_DEATH(transport.send(0, {}), "another rank");
}

}  // namespace
}  // namespace horon::core
