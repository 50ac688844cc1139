// What a profiler sees of a session's collectives by NVTX.
#include "horon/ops/cuda/nvtx_ranges.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/session/session.h"
#include "horon/tests/ops/session/blocking_sum.h"
#include "horon/tests/support/mpi_main.h"
#include "horon/tests/support/nvtx_profiler.h"

namespace horon {
namespace {

using test::nvtx_profiler;

TEST(NvtxRanges, ShowTheNegotiationAndTheWorkOfEachCollective) {
  constexpr int kCalls = 30;  // the last ones start without a message
  for (const std::string name : {"of.first.job", "of.second.job"}) {
    init_session();
    for (int call = 0; call < kCalls; ++call) {
      EXPECT_EQ(test::blocking_sum(name, {1, 1}).back(), static_cast<float>(test_size()));
    }
    shutdown();
    const auto negotiated = nvtx_profiler().ranges_named("negotiate " + name);
    const auto reduced = nvtx_profiler().ranges_named("allreduce " + name);
    ASSERT_EQ(negotiated.size(), kCalls);
    ASSERT_EQ(reduced.size(), kCalls);
    for (size_t i = 0; i < kCalls; ++i) {
      EXPECT_GT(negotiated[i].ended_at, negotiated[i].begun_at);
      EXPECT_GT(reduced[i].begun_at, negotiated[i].begun_at);
      EXPECT_GT(reduced[i].ended_at, reduced[i].begun_at);
    }
  }
  EXPECT_THAT(nvtx_profiler().domains(), testing::ElementsAre("Horon"));
}

}  // namespace
}  // namespace horon
