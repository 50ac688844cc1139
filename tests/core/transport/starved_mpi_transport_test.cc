// Messages by MPI where an allocation fails: none is lost, and MPI reads no memory that has been
// freed. A separate program, since it has an operator new of its own.
#include <cstddef>
#include <memory>
#include <new>
#include <optional>

#include <gtest/gtest.h>

#include "horon/core/bootstrap/mpi_bootstrap.h"
#include "horon/core/transport/mpi_transport.h"
#include "horon/tests/support/failing_allocation.h"
#include "horon/tests/support/mpi_main.h"

namespace horon::core {
namespace {

constexpr int kFailuresMax = 12;   // more allocations than one call makes
constexpr size_t kLong = 5 << 20;  // MPI reads these bytes after the call
constexpr size_t kShort = 100;

// Makes the allocation after `allocations` others fail. Calls `call` again if that has made it
// fail.
template <class Call>
auto starved(int allocations, const Call& call) {
  test::fail_allocations(allocations, 1);
  try {
    auto result = call();
    test::fail_allocations(0, 0);
    return result;
  } catch (const std::bad_alloc&) {
    test::fail_allocations(0, 0);
    return call();
  }
}

Bytes bytes_of(int message) {
  return Bytes(message % 3 == 0 ? kLong : kShort, static_cast<std::byte>(message + 1));
}

void send(MpiTransport& transport, int message) {
  const SharedBytes bytes(bytes_of(message));
  (void)starved(message, [&] {
    transport.send(1, bytes);
    return true;
  });
}

void expect_next(MpiTransport& transport, int message) {
  std::optional<Transport::Message> received;
  while (!received) received = starved(message, [&] { return transport.receive(); });
  EXPECT_EQ(received->from, 0);
  EXPECT_TRUE(received->bytes == bytes_of(message)) << message;
}

TEST(StarvedMpiTransport, LosesNoMessageAndKeepsWhatMpiReads) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  MpiTransport transport(bootstrap, {});
  for (int message = 0; message < kFailuresMax; ++message) {
    if (test_rank() == 0) send(transport, message);
    if (test_rank() == 1) expect_next(transport, message);
  }
  while (!transport.flushed()) {
  }
  MPI_Barrier(bootstrap.communicator());
}

}  // namespace
}  // namespace horon::core
