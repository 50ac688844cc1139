#include "horon/core/transport/in_process_transport.h"

#include <gtest/gtest.h>

#include "horon/tests/core/transport/transport_contract.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::core {
namespace {

template <int kSize>
struct ThreadWorld {
  static void run(const std::function<void(Transport&)>& body) {
    const auto world = InProcessTransport::make_world(kSize);
    run_ranks(kSize, [&](int rank) { body(*world[static_cast<size_t>(rank)]); });
  }
};

using Worlds = testing::Types<ThreadWorld<1>, ThreadWorld<2>, ThreadWorld<3>, ThreadWorld<4>>;
INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, TransportContract, Worlds);

TEST(InProcessTransport, OutlivesItsPeers) {
  auto world = InProcessTransport::make_world(2);
  world[0]->send(1, pattern(0, 1, 0, 5));
  world[0].reset();
  const auto message = world[1]->receive();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->from, 0);
  EXPECT_EQ(message->bytes, pattern(0, 1, 0, 5));
  world[1]->send(0, {});
}

TEST(InProcessTransportDeathTest, RefusesWrongRanks) {
  const auto world = InProcessTransport::make_world(2);
  EXPECT_DEATH(world[0]->send(0, {}), "another rank");
  EXPECT_DEATH(world[0]->send(2, {}), "another rank");
  EXPECT_DEATH(world[0]->send(-1, {}), "another rank");
  EXPECT_DEATH(InProcessTransport::make_world(0), "at least one");
}

}  // namespace
}  // namespace horon::core
